"""`mooring watch`: the changes of a service as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import typer

from mooring.cli.commands.instances import record, without_secrets
from mooring.cli.io.connect import RegistryTarget
from mooring.cli.io.options import JSONOption, ServiceArgument
from mooring.cli.io.streams import log_to_stderr, note
from mooring.cli.io.tables import EMPTY_FIELD, as_text, show_json
from mooring.discovery.view import View
from mooring.durations import format_duration
from mooring.formatting import printable
from mooring.masking import MASK
from mooring.mirror import Change
from mooring.model import JSON, Instance
from mooring.registry.json_values import number

WatchAction = Literal["added", "removed", "updated"]

_SIGNS: Mapping[WatchAction, tuple[str, str]] = {
    "added": ("+", typer.colors.GREEN),
    "removed": ("-", typer.colors.RED),
    "updated": ("~", typer.colors.YELLOW),
}
_STALENESS_CHECK = 0.5  # seconds
_DEFAULTS = {"healthy": "yes", "enabled": "yes", "weight": "1", "protocol": "tcp"}


async def watch(
    service: ServiceArgument, target: RegistryTarget, as_json: JSONOption = False
) -> None:
    """Follow a service and print its changes.

    Starts with the present instances. Lines begin with + (added), - (removed) or ~ (changed).
    Changes of metrics are not printed.
    """
    log_to_stderr("mooring.registry.kv.feeds", "mooring.registry.redis.service_feed")
    async with (
        target.connect() as hub,
        hub.discover(service, hold=0) as view,
        view.changes() as changes,
    ):
        present = sorted(view.instances, key=lambda instance: instance.id)
        if not present:
            note(f"{service} has no instances yet")
        _print((Change(instance.id, None, instance) for instance in present), service, as_json)
        stale = False
        while True:
            arrived: Iterable[Change[str, Instance]] = ()
            try:
                async with asyncio.timeout(_STALENESS_CHECK):
                    arrived = (await anext(changes)).changes
            except TimeoutError:
                pass
            except StopAsyncIteration:
                return
            stale = _report_staleness(view, stale)
            _print(arrived, service, as_json)


def _report_staleness(view: View, before: bool) -> bool:
    """Whether the list is stale. Prints a note when that begins and when it ends."""
    if view.stale and not before:
        silence = f"no contact with the store for {format_duration(view.age)}"
        note(f"{view.service}: stale: {view.seen.reason or silence}")
    elif before and not view.stale:
        note(f"{view.service}: live again")
    return view.stale


class InstanceChange(NamedTuple):
    action: WatchAction
    instance: Instance
    """The present state, or the last one before removal."""
    changed: Mapping[str, tuple[str, str]]
    """Field → (old value, new value)."""


def change_of(change: Change[str, Instance]) -> InstanceChange | None:
    """What to print of a change, secrets masked; None for a change of metrics alone."""
    if change.after is None:
        removed = change.before
        return None if removed is None else InstanceChange("removed", without_secrets(removed), {})
    if change.before is None:
        return InstanceChange("added", without_secrets(change.after), {})
    before, after = _facts(change.before), _facts(change.after)
    shown = without_secrets(change.after)
    old, new = _facts(without_secrets(change.before)), _facts(shown)
    changed = {
        label: (old.get(label, ""), new.get(label, ""))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
        for label in [name if name in old or name in new else MASK]
    }
    return InstanceChange("updated", shown, changed) if changed else None


def _facts(instance: Instance) -> dict[str, str]:
    """The printed fields of an instance, without metrics, which change all the time."""
    return {
        "state": instance.status.state,
        "healthy": "yes" if instance.status.healthy else "no",
        "enabled": "yes" if instance.enabled else "no",
        "weight": str(number(instance.weight)),
        "zone": instance.zone,
        "version": instance.version,
        "protocol": instance.protocol,
        **{f"ports.{name}": str(port) for name, port in instance.ports.items()},
        **{f"metadata.{name}": value for name, value in instance.metadata.items()},
        **{f"config.{name}": as_text(value) for name, value in instance.config.values.items()},
        "incarnation": instance.incarnation[:8],
    }


def _print(changes: Iterable[Change[str, Instance]], service: str, as_json: bool) -> None:
    for change in filter(None, map(change_of, changes)):
        if as_json:
            show_json(_record(change, service))
        else:
            sign, colour = _SIGNS[change.action]
            line = printable(f"{change.instance.id} {_description(change)}".rstrip())
            typer.echo(f"{typer.style(sign, fg=colour)} {line}")


def _record(change: InstanceChange, service: str) -> dict[str, JSON]:
    return {
        "action": change.action,
        "service": service,
        "id": change.instance.id,
        "changed": list(change.changed),
        "instance": record(change.instance),
    }


def _description(change: InstanceChange) -> str:
    if change.action == "removed":
        return ""
    if change.action == "updated":
        return ", ".join(
            f"{name} {before or EMPTY_FIELD} → {after or EMPTY_FIELD}"
            for name, (before, after) in change.changed.items()
        )
    facts = _facts(change.instance)
    return ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if value and value != _DEFAULTS.get(name) and name != "incarnation"
    )
