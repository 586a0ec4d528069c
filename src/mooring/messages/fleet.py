"""The English texts of events, reasons, problems and remarks."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    # Events.
    "registered": "registered at {address}, version {version}",
    "registered_before": "registered at {address}, before this server started",
    "gone_drained": "left after draining",
    "gone_down": "left after reporting that it is down",
    "gone_left": "left: it deregistered",
    "gone_removed": "left: an operator deregistered it",
    "gone_lost": "lost: its heartbeats stopped",
    "restarted": "its process restarted",
    "moved": "moved from {before} to {after}",
    "version_changed": "version {before} → {after}",
    "weight_changed": "weight {before} → {after}",
    "zone_or_ports_changed": "its zone or ports changed",
    "metadata_changed": "metadata changed: {names}",
    "came_up": "up",
    "healthy_again": "healthy again",
    "enabled": "enabled: callers may call it",
    "disabled": "disabled: callers do not call it",
    "heartbeat_resumed": "heartbeats resumed",
    "check_passing": "check passing",
    "check_skipped": "not checked: {detail}",
    "brake_on": "the brake is engaged: {detail}",
    "brake_off": "the brake is released",
    "emptied_lost": "its last instance was lost",
    "emptied_left": "its last instance deregistered",
    "stale": "the state may be stale: {error}",
    "live_again": "the state is live again",
    "drained_by": "disabled by {by}[, reason: {reason}]",
    "enabled_by": "enabled by {by}[, reason: {reason}]",
    "weight_set_by": "weight set to {weight} by {by}[, reason: {reason}]",
    "weight_reset_by": "weight reset to the registered one by {by}[, reason: {reason}]",
    "deregistered_by": "deregistered by {by}[, reason: {reason}]",
    "deregistered_itself": "it deregistered over HTTP",
    # Reasons: what is wrong with an instance, and why it is or is not called.
    "check_failing": "check failing: {detail}",
    "unhealthy": "it reports itself unhealthy",
    "missing": "missing from the registry",
    "heartbeat_late": "heartbeat late: silent for {seconds} s",
    "is_draining": "it is draining",
    "is_down": "it is down",
    "disabled_by_operator": "disabled by an operator",
    "disabled_by_itself": "disabled by the instance itself",
    "no_weight": "its weight is 0",
    "other_version": "its version is {version}, not {wanted}",
    "other_tag": "its {name} is {value}, not {wanted}",
    "no_tag": "it has no {name}, and {wanted} is required",
    "outside_zone": "its zone is {zone}, not {wanted}",
    "unknown_zone": "its zone is unknown, and {wanted} is required",
    "condition_failed": "the caller's condition raised an error: {error}",
    "condition_unmet": "it does not meet the caller's condition",
    "draining_last_resort": "it is draining, but no other instance is usable",
    "no_connection": "no connection",
    "ejected": "ejected: calls to it failed",
    "other_zone": "it is in {zone}, and there are instances in {wanted}",
    "no_zone": "it is in no zone, and there are instances in {wanted}",
    "spill_over": (
        "only {usable}% of the capacity of {zone} is usable, so {share}% of the calls spill over "
        "to other zones"
    ),
    "panic": "called anyway: only {healthy} of {total} are healthy (panic threshold)",
    "slow_start": "slow start: its effective weight is {weight}",
    "retained": "kept from the last known list: {detail}",
    # Warnings after a publish.
    "publish_split": (
        "too large for one transaction, written in {count}; readers may have seen a partial state"
    ),
    "publish_lost": (
        "not restored, because the history was written without an encryption key: {paths}"
    ),
    "publish_no_key": (
        "no encryption key is set: the password of {paths} is stored in clear text (set {variable})"
    ),
    "publish_clear_text": (
        "{path}[: {fields}] is stored in clear text: only passwords of databases are encrypted"
    ),
    # Problems. `_one` is about one instance.
    "problem_stale": "the registry cannot be read, so the state shown may be stale: {error}",
    "problem_store_alarm": "the store has an alarm: {alarm}",
    "problem_no_instances": "{service} has no instance: the last one was lost",
    "problem_absent": "{service} has no instance, and had none when this server started",
    "problem_emptied": "{service} has no instance: the last one deregistered",
    "problem_none_callable": (
        "{service}: none of its registered instances ({total}) is healthy and in rotation"
    ),
    "problem_brake": "{service}: the brake is engaged and pauses eviction: {detail}",
    "problem_unhealthy": (
        "{service}: {count} of {total} instances report themselves unhealthy ({ids})"
    ),
    "problem_unhealthy_one": "{service}: {ids} reports itself unhealthy",
    "problem_silent": "{service}: {count} of {total} instances send no heartbeat ({ids})",
    "problem_silent_one": "{service}: {ids} sends no heartbeat",
    "problem_check_failing": (
        "{service}: {count} of {total} instances fail their health checks ({ids})[: {detail}]"
    ),
    "problem_check_failing_one": "{service}: {ids} fails its health check[: {detail}]",
    "problem_draining": "{service}: {count} of {total} instances are still draining ({ids})",
    "problem_draining_one": "{service}: {ids} is still draining",
    "problem_disabled": "{service}: {count} of {total} instances are disabled ({ids})",
    "problem_disabled_one": "{service}: {ids} is disabled",
    # Hints: what to do about a problem.
    "hint_stale": "Check that the store answers: `mooring doctor`.",
    "hint_store_alarm": (
        "Free space and disarm the alarm; `mooring doctor` shows it too. Reads still work, "
        "but new instances, configuration and tokens may be refused."
    ),
    "hint_no_instances": (
        "Start an instance: until then, all calls fail. If the service is retired, press Forget on "
        "its page, or delete it through the API."
    ),
    "hint_absent": (
        "Its instances were gone when this server started. Start an instance. If the service is "
        "retired, press Forget on its page, or delete it through the API."
    ),
    "hint_emptied": (
        "Calls to it fail now. If you intended that, do nothing: this note disappears after an "
        "hour, or at once if you press Forget on the page of the service."
    ),
    "hint_none_callable": (
        "See what is wrong with each instance: `mooring explain {service}`. Meanwhile callers try "
        "all that are enabled and up (panic threshold), and fail if there is none."
    ),
    "hint_brake": (
        "A network fault is more likely than that many failures at once: check whether the "
        "instances run. If they are gone, release the brake: `mooring brake release {service}`."
    ),
    "hint_unhealthy": "Look at the log of the instance: it reports this itself.",
    "hint_silent": "Check that the process runs, and that it reaches the registry.",
    "hint_check_failing": (
        "Check that the instance answers the Mooring server at its registered address."
    ),
    "hint_draining": (
        "The instance is stopping: find out what it still waits for, or end its process."
    ),
    "hint_disabled": "An operator disabled the instance: enable it when it may get calls again.",
}
