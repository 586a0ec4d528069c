"""The English texts of errors, by the part of Mooring that raises them."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    # Values that have no text of their own.
    "a_map": "a map",
    "a_list": "a list",
    "a_set": "a set",
    "a_large_number": "a very large number",
    "an_object": "an object of type {type}",
    "missing_extra": "{what} needs an optional dependency: pip install {package!q}",
    # Values that do not have the expected form.
    "value_rejected": "[{place} ]{problem}",
    "value_rejected_because": "[{place}: ]{problem}",
    "value_at": "{whole}: {path}",
    "the_query": "the query",
    "the_body": "the body",
    "the_settings": "the settings",
    "the_value": "the value",
    "value_not_utf8": "is not UTF-8",
    "value_too_deep": "is nested too deeply",
    "value_not_allowed": "{value!q} is not an allowed value",
    "wrong_value": "must be {wanted}, not {sent!q}",
    "wrong_length": "must have {bound} characters",
    "wrong_count": "must have {bound} entries",
    "out_of_range": "must be {bound}",
    "pattern_mismatch": "does not match the pattern {pattern}",
    "field_missing": "has no {field}",
    "field_unknown": "has an unknown field {field!q}[, did you mean {meant!q}?][ (known: {known})]",
    "json_invalid": "is not valid JSON: {problem} at byte {byte}",
    "json_truncated": "is not valid JSON: it ends too early or contains an unpaired surrogate",
    "type_boolean": "true or false",
    "type_bytes": "text in base64",
    "type_time": "a time such as 2026-01-31T09:26:53Z",
    "type_number": "a number",
    "type_decimal": "a decimal number",
    "type_integer": "a whole number",
    "type_null": "null",
    "type_object": "an object",
    "type_text": "text",
    "types_or": "{first} or {last}",
    "types_and_more": "{first}, {second}",
    "at_most": "at most {limit}",
    "at_least": "at least {limit}",
    "exactly": "exactly {limit}",
    "less_than": "less than {limit}",
    "more_than": "more than {limit}",
    # Names, addresses and durations.
    "name_invalid": "the {what} name {name!q} {problem}",
    "what_domain": "domain",
    "what_group": "group",
    "what_service": "service",
    "name_not_text": "must be text",
    "name_empty": "is empty",
    "name_too_long": "is longer than {limit} characters",
    "name_has_slash": "contains a slash",
    "name_has_control": "contains a control character",
    "name_has_space_around": "starts or ends with a space",
    "name_is_folder": "is reserved: it refers to a folder",
    "name_has_colon_or_space": "contains a colon or a space",
    "service_not_text": "the name of a service must be text, not {name!q}",
    "service_too_long": "the service {name!q} is too long: {limit} characters is the limit",
    "service_two_slashes": "the service {name!q} has two slashes: write it as group/name",
    "service_reserved": "the service name 'info' in {name!q} is reserved for descriptions",
    "address_invalid": (
        "{address!q} is not an address: write it like 192.168.0.1:8080 or [::1]:8080"
    ),
    "host_not_text": "a host must be an IP address or a host name, not {host!q}",
    "host_in_zone": (
        "{host} ends in a zone (%{zone}), which names a network interface of one machine: other "
        "machines cannot call it. Use an address without a zone"
    ),
    "host_in_brackets": "{host} has brackets: write an IPv6 host without them",
    "host_invalid": "{host!q} is neither an IP address nor a host name",
    "host_not_an_ip": "{host!q} looks like an IP address, but is not a valid one",
    "host_unspecified": (
        "{host} means every address of a machine, and others cannot call it: use the address that "
        "others can reach, or none to have it determined automatically"
    ),
    "port_invalid": "port {port!q} is not between 1 and 65535",
    "duration_invalid": "{text!q} is not a duration: write it like 10s, 1m30s or 250ms",
    # Instances and the registry.
    "service_not_found": "service {service!q} not found[: did you mean {close!q}?]",
    "group_not_found": "group {group!q} not found[: did you mean {close!q}?]",
    "instance_not_found": "{service} has no instance {id!q}[: did you mean {close!q}?]",
    "kept_vanished": (
        "{count} instances vanished without deregistering: they are kept for at most {seconds} s, "
        "until they repair their records"
    ),
    "kept_last_to_leave": "no other instance can be called: the last ones that left are kept",
    "kept_last_list": "the service has no instances left: the last list is kept",
    "kept_missing": (
        "{count} instances are missing without deregistering: they are kept for at most {seconds} "
        "s, until their next heartbeats"
    ),
    "kept_unproven": (
        "all {count} instances were silent at the first read, perhaps because Redis' clock stepped "
        "before: they are kept for at most {seconds} s, until their next heartbeats"
    ),
    "brake_many_silent": (
        "{silent} of {total} instances are silent at once: the fault is likely elsewhere, and the "
        "last list is kept until they send heartbeats again"
    ),
    "brake_redis_rejects_writes": (
        "Redis rejects writes (a replica without its master, too few replicas or a failing disk) "
        "and receives no heartbeats: the last list is kept until it accepts them"
    ),
    "weight_not_a_number": "weight {weight!q} of {service} is not a number",
    "weight_out_of_range": "weight {weight!q} of {service} must be at least 0",
    "ports_not_a_map": "ports must be a map of names to numbers, not {ports!q}",
    "port_without_name": "the port {port!q} of {service} needs a name",
    "id_invalid": "the id {id!q} contains a space or a control character",
    "field_not_text": "{field} must be text, not {value!q}",
    "field_not_utf8": "{field} {value!q} is not valid UTF-8",
    "metadata_not_a_map": "metadata must be a map of text to text, not {value!q}",
    "metadata_not_text": (
        "metadata maps text to text, but {key!q} maps to {value!q}: write both as text"
    ),
    "metadata_too_large": (
        "the metadata of {service} has {size} bytes, more than the limit of {limit}: store large "
        "values elsewhere, and a reference here"
    ),
    "not_as_json": "{what} cannot be written as JSON: {problem}",
    "what_config": "the config of {service}",
    "what_metrics": "the metrics of {service}",
    "json_name_not_text": "the name {name!q} is not text",
    "json_not_finite": "{value} is not finite",
    "json_has_no": "JSON cannot represent {value!q}",
    "healthy_not_boolean": "healthy must be true or false, not {value!q}",
    "metrics_not_a_map": "metrics must be a map, not {value!q}",
    "record_malformed": "{place} {problem}",
    "not_a_json_object": "is not a JSON object but {value!q}",
    "has_invalid_value": "has an invalid value[ for {field}]: {problem}",
    "has_negative_weight": "has an invalid value for weight: {weight} must be at least 0",
    "has_wrong_field": "has a wrong {field!q}: {problem}",
    "has_malformed_field": "has a {field!q} that {problem}",
    "neither_true_nor_false": "{text!q} is neither true nor false",
    "not_a_number": "{text!q} is not a number",
    "not_a_port": "{number} is not a port",
    "not_a_time": "{number} is not a time",
    "description_field_unknown": "unknown description field {field!q}: choose one of {known}",
    "instance_superseded": (
        "{service} {id} was registered later by another process, which is alive: this process does "
        "not overwrite it"
    ),
    "instance_removed": (
        "{service} {id} was deregistered by an operator: it cannot register again before its "
        "process restarts"
    ),
    "instance_registered_here": (
        "{service} {id} is registered here already: close that registration first"
    ),
    "incarnation_missing": (
        "{service} {id}: the incarnation is missing: send the one that the registration returned"
    ),
    "registration_closed": "the registration of {service} {id} is closed: create a new one",
    "registration_closed_meanwhile": (
        "the registration of {service} {id} was closed in the meantime"
    ),
    "registry_closed_before_write": "the registry was closed before this was written",
    "lease_released": "the lease was released before it was granted",
    "record_too_large": (
        "the record of {service} {id} has {size} bytes, but a store accepts {limit} in one commit: "
        "reduce its metadata"
    ),
    "record_rejected_as_too_large": (
        "the record of {service} {id} is too large for one commit of the store, perhaps because of "
        "its metadata: {problem}"
    ),
    "metadata_over_limit": (
        "{size} bytes of metadata of {service} {id} are over the limit of {limit}: reduce it, or "
        "raise registry.redis.metadata-limit"
    ),
    "metrics_over_limit": (
        "{service} {id}: {size} bytes of metadata and metrics are over the limit of {limit}: "
        "reduce them, or raise the limit"
    ),
    "layout_unknown": "unknown layout {name!q}[, did you mean {meant!q}?] (known: {known})",
    "layout_with_root": "the layout {name!q} has a root of its own: leave {root!q} out",
    "layout_without_root": (
        "the layout {name!q} has no root, so its services cannot be distinguished from other keys: "
        "name one, like layout='{name}:/services/'"
    ),
    "hprose_with_group": "an hprose domain has no group: {service!q} contains a slash",
    "hprose_id_has_slash": "the UUID {id!q} of a server must not contain a slash",
    "hprose_protocol": (
        "hprose does not support the protocol {protocol!q}: the protocol of {service} must be one "
        "of {known}"
    ),
    "hprose_path": "the path {path!q} of {service} must start with a slash",
    "hprose_not_a_url": "{url!q} is not a URL: {problem}",
    "hprose_url": (
        "{url!q} is not the URL of an hprose server: write it like tcp://host:port/ ({known})"
    ),
    "signals_in_main_thread": "signals reach the main thread only: call until_stopped there",
    "layout_lacks": "the layout {name!q} has no {feature}: use tree, or Redis",
    "what_configuration": "configuration",
    "session_lost": (
        "the session of lease {lease} is {state}: its keys are deleted or will be soon; open a new "
        "session"
    ),
    "mirror_closed": "the mirror of {name} is closed: create a new one",
    "not_followed": "{name} cannot be followed: {problem}",
    "services_of": "the services in {registry}",
    "hub_not_open": "{url} is not open: use `async with mooring.connect(…) as hub`",
    "hub_forked": "{url} was opened before a fork: open it after the fork, in each process",
    "registry_only": (
        "{url} contains only a registry: locks, tenants and your own keys need a store. Name both: "
        'connect("etcd://…", registry="{scheme}://…"), or --store and --registry'
    ),
    "view_closed": "the view of {service} is closed",
    "too_few_instances": (
        "after {seconds} s, {available} of {count} required instances of {service} can be called"
    ),
    "instances_unreadable": "the instances of {service} cannot be read: {reason}",
    "no_reply_in_time": "no response in time",
    "no_instance_registered": "{service}: no instance is registered",
    "no_instance_callable": "{service}: none of {total} instances may be called: {reasons}",
    "count_of_reason": "{count} × {reason}",
    "not_healthy": "unhealthy",
    # Locks.
    "what_lock": "lock",
    "name_ends_with_slash": "ends with a slash: Mooring adds the slash before the contenders' keys",
    "ttl_not_a_number": "a TTL of {ttl} is invalid: it must be a number of seconds",
    "ttl_too_short": "a TTL of {ttl} is too short[ for {store}]: it must be at least {least}",
    "timeout_invalid": "timeout={timeout!q} is invalid: it must be at least 0 seconds, or None",
    "lock_timeout": (
        "the lock {name!q} was not acquired {when}[: held by {holder} (token {token})][, {others} "
        "more waiting][; {remains}]"
    ),
    "within_time": "within {seconds}",
    "immediately": "immediately",
    "lock_not_held": "the lock {name!q} is not held: {reason}; {remains}",
    "lock_not_held_without_key": (
        "the lock {name!q} is not held, and no key is left behind: {reason}"
    ),
    "lock_key_remains": (
        "the store did not confirm the deletion of its key, which may block other contenders until "
        "its TTL of {ttl} ends"
    ),
    "store_silent": "the store did not answer within {seconds}",
    "the_key": "the key {key!q}",
    "lock_reentered": (
        "the lock {name!q} is already held or waited for by this task, which would deadlock; pass "
        "the held lock on instead"
    ),
    "lock_not_entered": "the lock {name!q} was not entered",
    "lock_left_unclearly": (
        "the lock {name!q} was entered by several tasks, and it is unclear which of them leaves it "
        "here: leave it in the task that entered it, or use `acquire` and `release`"
    ),
    "lock_released": "the lock {name!q} was released",
    "lock_of_parent": "the lock {name!q} is held by the parent process",
    "lock_lost": "the lock {name!q} is lost: {reason}; another contender may hold it",
    "lease_late": "its lease was not renewed in time",
    "lease_lost": "its lease was not renewed in time, or was revoked",
    "key_deleted": "its key was deleted",
    "key_gone_at_release": "its key was gone before the release",
    "hub_closed": "the hub was closed",
    "queue_entry_deleted": "the queue entry {key} was deleted in the meantime",
    "queue_entry_gone": "the queue entry {key} is gone: {reason}",
    "lock_of_another_kind": (
        "{name!q} is used as another kind of lock, by {by!q}: choose another name"
    ),
    "lock_of_another_size": "{name!q} has size {size} for {by}, not {wanted}: use the same size",
    "token_stale": (
        "{resource!q} rejects the fencing token {token}, whose holder lost the lock: {newest} was "
        "recorded"
    ),
    "a_newer_one": "a newer one",
    # Redis.
    "op_heartbeat": "heartbeat of {service}[ {id}]",
    "op_registration": "registration of {service} {id}",
    "op_deregistration": "deregistration of {service} {id}",
    "op_cleanup": "cleanup of {service}",
    "op_cleanup_scan": "cleanup (SCAN)",
    "op_brake_release": "release of the brake of {service}",
    "op_clock": "read of the clock",
    "op_list": "list of {what}",
    "what_services": "services",
    "what_brakes": "brakes",
    "what_descriptions": "descriptions",
    "op_delist": "removal of {service} from the list of services",
    "op_deletion": "deletion of {service}",
    "op_change": "change of {key}[ {field}]",
    "op_write": "write of {key}",
    "op_election": "election of a leader",
    "op_search": "search for keys",
    "op_cluster_discovery": "discovery of the cluster",
    "op_changes": "subscription to {channel}",
    "not_sendable": "{operation}: {text!q} is not valid UTF-8 and cannot be sent",
    "calls_failed": "{store}: the calls failed unexpectedly: {problem}",
    "channel_silent": "no message on {channel} within {seconds} s",
    "redis_login_failed": "{operation}: the login at {store} failed: {reason}",
    "redis_not_allowed": "{operation}: {store} does not allow it: {reason}",
    "redis_out_of_memory": (
        "{operation}: {store} is out of memory and refuses writes: raise its maxmemory or free "
        "memory"
    ),
    "redis_wrong_type": (
        "{operation}: a key of the registry at {store} has the wrong type (WRONGTYPE): {which}; "
        "delete it, or choose another prefix"
    ),
    "redis_key_type": "{key}[ is a {type} and] should be a {expected}",
    "redis_check_types": "check the keys of this service with TYPE",
    "redis_is_cluster": (
        "{operation}: {store} belongs to a cluster and does not hold this key: write the URL as "
        "redis+cluster://"
    ),
    "redis_answered": "{operation}: {store} answered: {reason}",
    "redis_reply_lost": (
        "{operation}: no response from {store} ({reason}); it may have taken effect: check before "
        "you retry"
    ),
    "redis_no_node": "no node of the cluster answers: {problem}",
    "redis_no_reply": "no answer within {seconds} s",
    "redis_connection_lost": "the connection was lost: {problem}",
    "redis_no_pong": "no answer to PING",
    "redis_prefix_reserved": (
        "the prefix {prefix!q} cannot end with 'services': its keys would look like those of "
        "another registry"
    ),
    "redis_service_has_brace": (
        "the service {service!q} contains a brace, which would select a slot on a cluster"
    ),
    # Stores.
    "lease_not_found": (
        "lease {lease} is not known to the store: it expired or was revoked; grant a new one"
    ),
    "compacted": (
        "revision {asked} is compacted[, the history starts at {start}]: read the current state "
        "again and continue from its revision"
    ),
    "future_revision": (
        "revision {asked} has not happened yet: the store may have been restored from a backup; "
        "read the current state again"
    ),
    "all_keys": "all keys",
    "operation_failed": "{operation}: {problem}",
    "both": "{first}; {second}",
    "op_commit": "commit[ of {key}][ and {more} more]",
    "op_read": "read of {key}",
    "op_watch": "watch of {key}",
    "op_grant": "grant of a lease",
    "op_renewal": "renewal of lease {lease}",
    "op_revocation": "revocation of lease {lease}",
    "op_lease": "read of lease {lease}",
    "op_compaction": "compaction at {revision}",
    "op_login": "login of user {user!q}",
    "store_closed": "{store} is closed",
    "store_closed_meanwhile": "{store} was closed in the meantime",
    "store_closed_before_reply": (
        "{store} was closed before the reply came: the write may have happened"
    ),
    "connection_closed": "the connection to {endpoint} is closed",
    "watch_closed": "the watch of {key} was closed",
    "watch_reader_slow": (
        "{operation}: the reader is too slow ({bytes} bytes are buffered), so the watch ended; "
        "resume it after the last revision that was read"
    ),
    "store_unavailable": "{operation}: {store} is not available: {reason}",
    "no_endpoint_available": "{operation}: no endpoint is available; {problem}",
    "every_endpoint": "the store (last endpoint tried: {endpoint})",
    "store_reply_lost": (
        "{operation}: the response of {store} was lost ({reason}); the write may have taken "
        "effect: read before you retry"
    ),
    "store_reply_too_large": (
        "{operation}: the response of {store} is over the client's limit ({reason}); the write may "
        "have taken effect: reduce the reads in the commit"
    ),
    "store_rejects_token": "{operation}: {store} rejects our token repeatedly ({reason})",
    "store_answered": "{operation}: {store} answered {code}: {reason}",
    "no_reason_given": "no reason given",
    "no_answer_in_time": "{operation}: no response from {endpoint} in time",
    "no_answer_within": "{operation}: no response from {endpoint} within {seconds} s",
    "check_failed": "{operation}: a check failed",
    "read_outrun": "{operation}: the store compacts faster than it can be read",
    "answer_too_large": "{operation}: the response is larger than {limit} bytes",
    "password_file_unreadable": (
        "password_file={file} cannot be read: {reason}; the next call reads it again"
    ),
    "tls_needs_cert_and_key": "a client certificate needs both: cert=FILE and key=FILE",
    # Stores: etcd.
    "etcd_permission_denied": (
        "{operation}: permission denied by {store}: grant the user's role read and write on these "
        'keys (see "The minimal role" in docs/etcd.md)'
    ),
    "etcd_requires_user": (
        "{operation}: {store} requires a user: add ?user=NAME&password=… to the URL, or set "
        "MOORING_ETCD_PASSWORD"
    ),
    "etcd_rejects_login": "{operation}: {store} rejects the user name or password",
    "etcd_request_too_large": (
        "{operation}: larger than {store} accepts in one commit (--max-request-bytes)"
    ),
    "etcd_too_many_operations": (
        "{operation}: more operations in one commit than {store} accepts (--max-txn-ops)"
    ),
    "etcd_out_of_space": (
        "{operation}: {store} is out of space (alarm NOSPACE) and refuses writes; reads continue. "
        "Compact, defragment and disarm it: etcdctl compact, defrag, alarm disarm"
    ),
    "etcd_key_twice": "{operation}: {store} refuses to write a key twice in one commit",
    "etcd_ended_watch": "{operation}: ended by the server ({reason})",
    "endpoint_silent": (
        "{address} does not respond. Check the address, firewalls, and that the server is not "
        "paused"
    ),
    "endpoint_untrusted": (
        "the certificate of {address} is not trusted: {reason}. Set its certificate authority "
        "with ?ca=FILE, or the name in the certificate with ?server_name="
    ),
    "endpoint_wants_certificate": (
        "{address} asks for a client certificate that it accepts: give ?cert=FILE&key=FILE"
    ),
    "endpoint_wants_tls_certificate": (
        "{address} speaks TLS and asks for a client certificate: use "
        "etcds://…?ca=FILE&cert=FILE&key=FILE"
    ),
    "endpoint_refused": (
        "nothing listens at {address} (connection refused). Check that the server runs and that "
        "the port is right"
    ),
    "endpoint_not_a_host": "{address} is not a host name: check the URL",
    "endpoint_unreachable": "{address} cannot be reached: {reason}",
    "endpoint_without_tls": "{address} does not speak TLS: use etcd:// instead of etcds://",
    "endpoint_with_tls": "{address} speaks TLS: use etcds:// instead of etcd://",
    "endpoint_closes": "{address} closes the connection: is it etcd's client port?",
    "endpoint_not_etcd": (
        "{address} is not etcd: it answered {answer!q}. Is it another server's port?"
    ),
    "stream_silent": "{address} is silent",
    "stream_without_quorum": "{address} answers no linearizable read: it may have lost its quorum",
    "stream_ended": "{address} ended the stream ({reason})",
    "stream_closed": "the store was closed",
    "alarm_nospace": (
        "NOSPACE: a member is out of space, writes are refused. Compact, defragment, then `etcdctl "
        "alarm disarm`"
    ),
    "alarm_corrupt": "CORRUPT: a member's data differs from the others'. Replace that member",
    "endpoint_unavailable": "{address} is not available: {reason}",
    # Stores: embedded.
    "file_in_use": (
        "{path} is in use by {holder}: only one process can open a store. Stop that process, or "
        "access the store through it (mooring serve)"
    ),
    "another_process": "another process",
    "file_is_folder": "{path} is a folder: name a file in it",
    "file_outside_folder": "{path} is not in a folder: name a file in a folder",
    "file_not_opened": "{path} cannot be opened: {problem}",
    "file_no_store": "{path} cannot be opened as a store: {problem}",
    "file_not_read": "{path} cannot be read as a store: {problem}",
    "file_missing": "{path} does not exist or is not a file: name the file of a store",
    "file_empty": "{path} is empty: name the file of a store",
    "file_foreign": "{path} is a SQLite file, but not one of Mooring's: choose another path",
    "file_too_new": (
        "{path} was written by a newer Mooring (schema {version}, this one knows {schema}): "
        "upgrade Mooring"
    ),
    "file_needs_upgrade": (
        "{path} is read-only, and must be upgraded from schema {version} to {schema}: make it "
        "writable"
    ),
    "file_damaged": (
        "{path} is damaged ({problem}): `mooring store check {path}` shows details; replace it "
        "with a backup"
    ),
    "value_missing": "{name!q} is missing",
    "file_read_only": "it is read-only",
    "file_written_by_another": "another process has written to it: restart this one",
    "file_not_written": "{path} cannot be written: {problem}",
    "file_refuses_writes": "{problem}: writes are refused, reads continue",
    "file_commit_unknown": (
        "{problem} while it was committing: the write may or may not be on disk. Read before you "
        "write again; writes resume when the file can be written"
    ),
    "file_out_of_space": (
        "{problem}: nothing was written, reads continue; free space or make the file writable, and "
        "writes resume"
    ),
    "file_unavailable": (
        "{problem}: nothing was written, reads continue; writes resume when the file can be written"
    ),
    "file_rejects_write": (
        "{path} cannot store a write: {problem}: nothing was written. This is a bug in Mooring, "
        "report it"
    ),
    "history_incomplete": "revisions are missing from the history",
    "history_lost": (
        "it is at revision {revision}, but {confirmed} was confirmed: it has lost writes, replace "
        "it with a backup"
    ),
    "quota_exceeded": (
        "the store uses {size} bytes of its quota of {quota} (alarm NOSPACE): writes are refused, "
        "deletions and reads continue. Delete and compact, then disarm the alarm (etcdctl alarm "
        "disarm); or set a larger quota and restart"
    ),
    "commit_operations": "{count} operations in one commit: the store accepts at most {limit}",
    "commit_bytes": "{size} bytes in one commit: the store accepts at most {limit}",
    "check_failed_on": "the check {field} {sign} {expected} on {key} failed",
    "the_expected_one": "the expected one",
    "alarm_quota": (
        "NOSPACE: the store has reached its quota and refuses writes; delete and compact, then "
        "`etcdctl alarm disarm`"
    ),
    # Tenants.
    "tenant": "tenant {id}",
    "common_settings": "common settings",
    "platform_settings": "platform settings",
    "of_owner": "{owner}: {problem}",
    "in_text": "{text}[, document {number}]: {problem}",
    "not_found": "{what} not found",
    "tenant_lacks": "{tenant} has no {what}",
    "tenant_not_found": "no {what}: {tenant} not found",
    "a_database": "database for the service {service!q}",
    "the_databases": "databases",
    "an_ftp_user": "FTP user {name!q}",
    "the_ftp_users": "FTP users",
    "the_active_ftp_users": "active FTP users",
    "the_storage": "storage",
    "the_domain": "domain",
    "tenant_id_invalid": "the id {id!q} of a tenant must be a positive integer",
    "namespace_empty": "the namespace of the tenants is empty",
    "setting_unknown": "unknown setting {path}: use one of {known} or platform/configs/KEY",
    "part_unknown": (
        "{path} is not a part of a tenant: use meta, domain/primary, domain/aliases, "
        "domain/internal, database/SERVICE, ftp/USER or storage"
    ),
    "part_of_other": "{path!q} is not a part of {owner}",
    "part_unreadable": "{path} cannot be parsed and is omitted: publishing may remove it",
    "meta_required": "meta cannot be removed alone: delete the tenant",
    "argument_not_allowed": "{name} must be one of {allowed}, not {value!q}",
    "argument_is_text": "give a collection of statuses or paths, not one text",
    "exempt_invalid": "{path!q} cannot be exempt: write a path like '/health'",
    "keep_too_small": "keep must be at least 1",
    # Documents of tenants.
    "document_unreadable": "cannot be read: {reason}",
    "document_not_map": "a tenant's file must be a map with {names}",
    "document_without_id": "id is missing: the id of the tenant",
    "several_documents": "it contains {count} documents: one is expected",
    "not_yaml": "not YAML: {problem}",
    "not_json": "not JSON: {problem}",
    "text_too_nested": "it has too many nested maps and lists",
    "value_not_of_tag": "a value does not match its tag, or is too long",
    "duplicate_name": "duplicate name {name!q}[, line {line}, column {column}]",
    "merged_too_large": "maps are merged into one that is too large",
    "the_document": "the document",
    "value_not_quoted": "must be text, not {actual} (put it in quotes)",
    "name_not_quoted": "has a name that is not text[: {name}] (put it in quotes)",
    "nothing": "nothing",
    "a_range": "between {low} and {high}",
    "one_of": "one of {allowed}",
    "map_of_fields": "a map of fields",
    "host_names": "a list of host names",
    "a_host_name": "a host name like shop.example.com",
    "a_header_name": "a header's name",
    "code_letters": "letters, digits and underscores",
    "user_letters": "letters, digits, dots, hyphens and underscores",
    "kebab_case": "in kebab-case, like evidence-query",
    "name_has_invisible": (
        "contains the invisible character {code}, which can make it look like another"
    ),
    "name_has_segment": "must not contain {segment} as a segment",
    "host_not_ascii": "must be written in ASCII: write {encoded} (punycode) instead of {host}",
    "value_not_sealed": "must be the base64 of an encrypted password",
    "value_has_surrogate": "contains an unpaired surrogate",
    "value_not_finite": "must be a finite number",
    "value_too_large": "is a number that is too large",
    "value_not_json": "cannot be written as JSON: {problem}",
    "value_too_nested": "has too many nested values",
    "value_masked": "contains a masked secret: write the secret itself",
    "value_is_null": "must have a value: to remove it, unset it",
    "field_masked": "is masked: leave it out to keep what is stored",
    "field_known": "is a known field: write it outside `extra`",
    "field_misplaced": "is {value!q}, but must be {expected!q} here",
    # Passwords of tenants.
    "set_key": "set {variable}[ ({ignored} is set, but does not hold a key of 32 bytes)]",
    "key_size": "an encryption key has {count} bytes: it must have {size}",
    "key_invalid": (
        "{name} is not a key of 32 bytes, as text, in hexadecimal or in base64 (make one with "
        "`openssl rand -base64 32`)"
    ),
    "an_encrypted_password": "an encrypted password",
    "password_without_key": "a password is encrypted, and there is no key: {remedy}",
    "password_of_unknown_key": (
        "a password is encrypted with the key {id}, which is not among the known keys ({known}): "
        "add it to {variable}"
    ),
    "password_undecipherable": (
        "a password cannot be decrypted with any known key: it was damaged, or another key is "
        "needed (see {variable})"
    ),
    "password_damaged": "an encrypted password is too short or not base64: it was damaged",
    "password_downgraded": (
        "is encrypted in the store, and would now be stored in clear text: {remedy}"
    ),
    "password_in_clear": (
        "{path}.password would be stored in clear text, but {namespace} has or had passwords that "
        "are encrypted[ with the key {key}]: {remedy}, or delete {marker} if none is left"
    ),
    "password_beside_sealed": (
        "{path}.password would be stored in clear text, but that of {sealed} is encrypted: {remedy}"
    ),
    "password_key_foreign": (
        "passwords are encrypted with another key[, {key}], and {common} holds the key {own}, "
        "which may belong to another application: set {variable}"
    ),
    "rekey_without_key": "there is no key to encrypt with: {remedy}",
    "redirect": (
        "{secret} is kept, but {changed} changes: send the secret as well, or ask an admin to make "
        "this change"
    ),
    # Publishing tenants, and their history.
    "claim_by_code": "the code {name!q}",
    "claim_by_name": "the name {name!q}",
    "claim_ftp_user": "the FTP user {name!q}",
    "claim_host": "the host {name!q}",
    "claim_taken": "{claim} belongs to {holder} already",
    "claim_not_found": "no tenant has {claim}",
    "changed_meanwhile": "{owner} was changed in the meantime",
    "too_many_conflicts": (
        "{owner} was not written: others changed it {tries} times in the meantime; retry"
    ),
    "an_index": "an index",
    "unit_too_large": (
        "{what} is larger than a store accepts in one commit ({size} bytes, {operations} "
        "operations)"
    ),
    "publish_partial": "only partly written (transactions: {count}): repeat it",
    "publish_unconfirmed": (
        "a response was lost, so it may or may not have been written: check, or repeat it"
    ),
    "publish_interrupted": "{owner}: {progress} ({error})",
    "publish_trimmed": (
        "{owner}: the response was lost, and version {version} of the history is trimmed already: "
        "it may or may not have been written"
    ),
    "version_not_found": "no version {version} in its history[ (there are {first} to {last})]",
    "version_in_publish": (
        "{owner} cannot go back to {version}, which is in the middle of a publish that took "
        "several transactions[ (complete versions near it: {near})]"
    ),
    "version_unreachable": (
        "{owner} cannot go back to {version}: an entry of its history since then is missing or "
        "unreadable"
    ),
    # Reading tenants, and the tenant of a request.
    "tenants_of": "tenants of {namespace!q} in {store}",
    "tenants_unreadable": "the {what} cannot be read: {problem}",
    "tenants_not_loaded": "the tenants are not loaded yet: retry",
    "resolver_unreadable": (
        "the setting common/resolver, which says how a request names its tenant, is unreadable"
        "[: {problem}]"
    ),
    "the_header": "the header {name}",
    "the_query_parameter": "the query parameter {name}",
    "the_segment": "segment {name} of the path, counted from 0,",
    "tenant_missing": "{place} is missing: it names the tenant",
    "tenant_ambiguous": "{place} is given more than once, with different values",
    "tenant_malformed": "{place} is neither the id nor the code of a tenant",
    "hosts_ambiguous": "the header {header} is given more than once",
    "host_malformed": "the header {header} is not a host",
    "host_without_id": "the host {host} does not begin with the id of a tenant",
    "host_without_code": "the host {host} does not begin with the code of a tenant",
    "no_tenant_with_id": "no tenant has this id",
    "no_tenant_with_code": "no tenant has this code",
    "no_tenant_with_host": "no tenant has this host",
    "tenant_inactive": "the tenant is inactive",
    "tenant_suspended": "the tenant is suspended",
    "no_current_tenant": (
        "there is no current tenant: there is no request, or the request named none; "
        "TenantMiddleware sets it for requests, and acting_for(tenant) for other code"
    ),
    # Requests to the server.
    "internal_error": "internal error: the server's log has the details",
    "no_endpoint": (
        "no endpoint at {path}: see /admin/openapi.json. Write the slash between a group and a "
        "service as %2F"
    ),
    "path_empty_segment": "the path has an empty segment",
    "path_bad_escape": "the path has a % without two hex digits",
    "path_not_utf8": "the path is not valid UTF-8",
    "path_has_control": "the path contains a control character",
    "path_too_long": "a segment of the path exceeds {limit} characters",
    "method_not_supported": "{method} is not supported here: use {allowed}",
    # Queries and bodies.
    "query_malformed": "invalid query string: {error}",
    "query_repeated": "a query parameter is given twice",
    "query_unknown": "unknown query parameter {name!q}[: use one of {known}]",
    "body_too_large": "the body is over the limit of {limit} bytes",
    "body_truncated": "the request body was truncated",
    "body_too_slow": "the body did not arrive within {seconds} s",
    "body_not_expected": "this endpoint takes no body",
    "body_not_json": "the body must be JSON: Content-Type: application/json",
    "body_too_deep": "the body is nested {depth} levels deep: the limit is {limit}",
    # Access.
    "host_header_missing": "the request needs exactly one Host header",
    "host_unknown": (
        "the host {host!q} is not a name of this server: if it should be, add it to `hosts:` in "
        "the file of `mooring serve --config`"
    ),
    "write_foreign": "{reason}: writes are accepted only from the server's own page",
    "origin_is": "the origin of the request is {origin!q}",
    "origin_missing": "the request has no Origin header",
    "fetch_site_is": "Sec-Fetch-Site of the request is {site!q}",
    "from_another_site": "the request comes from another site",
    "too_many": "too many {what}: try again in {seconds} s",
    "requests_from_address": "requests from your address",
    "wrong_tokens_from_address": "wrong tokens or codes from your address",
    "writes_of": "writes of {name}",
    "streams_of_token": (
        "the token of {name} has {limit} open streams: close some, or use another token"
    ),
    "stream_too_far_behind": "too many changes since the last event",
    "stream_event_unknown": "the last event is unknown",
    "streams_of_server": (
        "this server has too many open streams: retry later, or use another server"
    ),
    "role_insufficient": "{name} has the role {role}: this requires the role {needed}",
    "scope_insufficient": (
        "{name} is scoped to groups or tenants: this requires an unscoped token"
    ),
    "outside_groups": "{name} may not access {service}: outside its groups",
    "outside_tenants": "{name} may not access tenant {tenant}: outside its tenants",
    "secrets_forbidden": "{name} may not read secrets: this requires the role admin",
    "token_missing": (
        "send a token: Authorization: Bearer TOKEN (see `mooring token create`), or log in with "
        "the link that `mooring login` prints"
    ),
    "token_not_valid": "this token is unknown, revoked or expired",
    "token_just_revoked": "the token has just been revoked",
    "token_unconfirmed": (
        "the store is unreachable, so this token has not been confirmed recently: retry later"
    ),
    "tokens_unreadable": (
        "the store is unreachable, so the server cannot read its tokens: retry later"
    ),
    "tokens_not_open": "the server has not opened its tokens yet: try again in a second",
    "tokens_too_many": "there are {limit} tokens: revoke unused ones",
    "token_not_found": "token {id!q} not found: see `mooring token list`",
    "token_name_invalid": "the name of a token must be printable and not blank",
    "token_lifetime_not_positive": "the lifetime of a token must be positive",
    "token_lifetime_too_long": "the lifetime is too long: create a token without one",
    "admin_token_is_a_file": (
        "the admin token is the file {file}: remove it, and the next start of the server creates "
        "another"
    ),
    "login_link_of_session": (
        "a session cannot create a login link: use the token (`mooring login`)"
    ),
    "console_off": (
        "the console of this server is disabled (`console: off` in its settings): use the API and "
        "the commands with a token"
    ),
    "console_file_not_found": "the console has no such file",
    "audit_unreadable": "the audit log cannot be read: {reason}",
    # The state of the server.
    "server_starting": "the server is starting: its store is not open; retry in a second",
    "server_stopping": "the server is stopping: its store is closed; retry in a second",
    "registry_not_read": "the registry has not been read yet: {error}",
    "registry_unanswered": "{url} has not answered yet",
    "registry_silent": "{url} has not responded for too long",
    # Requests about services, instances and locks.
    "registration_gone": (
        "{service} {id} is no longer registered: register again with the same incarnation"
    ),
    "registration_of_another": "{service} {id} is not registered with this incarnation",
    "ttl_invalid": "invalid ttl {ttl}: it must be more than 0 and at most one hour",
    "instance_gone": "{service} no longer has the instance {id!q}",
    "service_not_empty": (
        "{service} has instances ({count}): deregister them or stop their processes first"
    ),
    "service_has_records": (
        "{service} has records of instances that are silent or unreadable: on Redis, run the "
        "cleanup (`mooring cleanup --once`) first"
    ),
    "service_query_invalid": "invalid service: expected group/name, or name",
    "stream_kind_unknown": "unknown kind {kind!q}: expected some of {known}",
    "scrape_port_invalid": "invalid port {port!q}: expected 1 to 65535, or a name",
    "brakes_missing": "this registry has no brakes: only a registry on Redis has them",
    "brake_not_engaged": "the brake of {service} is not engaged",
    "change_empty": "empty change: send `set` or `unset`",
    "change_contradictory": "{name!q} is both in `set` and in `unset`",
    "change_too_large": "{count} values exceed the limit of {limit} per change",
    "description_empty": "empty change: send displayName or description",
    "mask_without_secret": (
        "{name!q} is masked, but no secret is stored: omit it or send the value"
    ),
    "lock_not_found": "the lock {name!q} has neither holders nor waiters",
    "lock_held_by_others": (
        "{name} is not held by the lease {lease}[ with the token {token}][; its holders are, as "
        "lease:token: {holders}]. Read the lock again and name a current holder"
    ),
    # Requests about tenants and the shared configuration.
    "tenant_id_not_a_number": "{text!q} is not a tenant id: expected a number",
    "tenant_of_another_path": (
        "the document is for tenant {document}, but the path names tenant {path}"
    ),
    "already_exists": "{what} already exists: read and change it instead",
    "changed_since_read": (
        "{owner} changed since you read it: read it again and merge your change"
    ),
    "claim_held": "{claim} is already taken",
    "a_name": "a name",
    "no_history": "{owner} not found, and its history is empty",
    "area_not_found": "shared area {area} not found: use one of {known}",
    "common_setting_not_found": "common setting {key} not found: use one of {known}",
    "key_has_empty_segment": "a key must not start or end with a slash, nor contain `//`",
    # Health checks. The failures are about an instance.
    "probe_failed": "its check failed",
    "checker_broken": "the checker of {protocol} raised an error",
    "probe_unanswered": "no answer within {duration}",
    "probe_refused": "it refused the connection",
    "probe_closed": "it closed the connection",
    "probe_unreachable": "it cannot be reached",
    "host_not_resolved": "its host name cannot be resolved",
    "host_not_resolved_in_time": "its host name cannot be resolved in time",
    "host_without_addresses": "its host name has no addresses",
    "certificate_not_yet_valid": "its certificate is not valid yet",
    "certificate_expired": "its certificate has expired",
    "certificate_of_another_name": "its certificate is for another name",
    "certificate_of_another_address": "its certificate is for another address",
    "certificate_untrusted": ("its certificate is not signed by an authority that is trusted here"),
    "tls_handshake_failed": "its TLS handshake failed",
    "answered": "it answered {status}",
    "answer_not_http": "its answer is not HTTP/1.1",
    "too_many_informational_responses": "it sends too many informational responses",
    "too_many_headers": "its answer has too many headers",
    "line_too_long": "its answer has a line that is too long",
    "grpc_not_serving": "it reports that it is not serving",
    "grpc_unreachable": "it cannot be reached over gRPC",
    "websocket_not_opened": "it answered {status} instead of opening a WebSocket",
    "websocket_other_protocol": "it switched to another protocol than WebSocket",
    "websocket_wrong_key": "its WebSocket handshake has a wrong accept key",
    "health_path_invalid": "{name} in its metadata is not a path",
    "address_refused": "its address {problem}",
    "host_address_refused": "an address of its host name {problem}",
    "target_not_an_ip": "is not an IP address",
    "target_has_scope": "has a scope id",
    "target_unspecified": "is unspecified",
    "target_multicast": "is multicast",
    "target_reserved": "is broadcast or reserved",
    "target_link_local": "is link-local",
    "target_cloud_metadata": "is the metadata service of a cloud",
    "target_translated": "is a local-use NAT64 address",
    "target_is_this_server": "is this server itself",
    "target_loopback": "is loopback, which must be listed in checks.networks",
    "target_not_in_networks": "is in none of checks.networks",
}
