"""`mooring watch`: follow a service and print its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import typer

from mooring import durations
from mooring.cli.commands.instances import record, without_secrets
from mooring.cli.io.connect import open_hub, run_command
from mooring.cli.io.options import (
    JSONOption,
    LayoutOption,
    RegistryOption,
    ServiceArgument,
    StoreOption,
)
from mooring.cli.io.output import (
    EMPTY_FIELD,
    as_text,
    log_to_stderr,
    note,
    number,
    printable,
    show_json,
)
from mooring.discovery.view import View
from mooring.masking import MASK
from mooring.mirror import Change
from mooring.model import JSON, Instance

Action = Literal["added", "removed", "updated"]

_SIGNS: Mapping[Action, tuple[str, str]] = {
    "added": ("+", typer.colors.GREEN),
    "removed": ("-", typer.colors.RED),
    "updated": ("~", typer.colors.YELLOW),
}
_LOOK = 0.5  # seconds between two checks for staleness
_DEFAULTS = {"healthy": "yes", "enabled": "yes", "weight": "1", "protocol": "tcp"}


def watch(
    service: ServiceArgument,
    store: StoreOption = "",
    registry: RegistryOption = "",
    layout: LayoutOption = "tree",
    as_json: JSONOption = False,
) -> None:
    """Follow a service and print its changes.

    Starts with the present instances. `+ ID` was added, `- ID` was removed, `~ ID` changed.
    Changes of metrics are not printed.
    """
    log_to_stderr("mooring.registry.kv.feeds", "mooring.registry.redis.service_feed")
    run_command(_watch(service, store, registry, layout, as_json))


async def _watch(service: str, store: str, registry: str, layout: str, as_json: bool) -> None:
    async with (
        open_hub(store, layout, registry=registry) as hub,
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
                async with asyncio.timeout(_LOOK):
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
        silence = f"no contact with the store for {durations.show(view.age)}"
        note(f"{view.service}: stale: {view.seen.reason or silence}")
    elif before and not view.stale:
        note(f"{view.service}: live again")
    return view.stale


class Event(NamedTuple):
    action: Action
    instance: Instance
    """The present state, or the last one before removal."""
    changed: Mapping[str, tuple[str, str]]
    """Field → (old value, new value)."""


def event_of(change: Change[str, Instance]) -> Event | None:
    """A change as an event, secrets masked; None if nothing that is printed has changed."""
    if change.after is None:
        gone = change.before
        return None if gone is None else Event("removed", without_secrets(gone), {})
    if change.before is None:
        return Event("added", without_secrets(change.after), {})
    before, after = _facts(change.before), _facts(change.after)
    shown = without_secrets(change.after)
    was, now = _facts(without_secrets(change.before)), _facts(shown)
    changed = {
        label: (was.get(label, ""), now.get(label, ""))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
        for label in [name if name in was or name in now else MASK]
    }
    return Event("updated", shown, changed) if changed else None


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
    for event in filter(None, map(event_of, changes)):
        if as_json:
            show_json(_record(event, service))
        else:
            sign, colour = _SIGNS[event.action]
            line = printable(f"{event.instance.id} {_words(event)}".rstrip())
            typer.echo(f"{typer.style(sign, fg=colour)} {line}")


def _record(event: Event, service: str) -> dict[str, JSON]:
    return {
        "action": event.action,
        "service": service,
        "id": event.instance.id,
        "changed": list(event.changed),
        "instance": record(event.instance),
    }


def _words(event: Event) -> str:
    if event.action == "removed":
        return ""
    if event.action == "updated":
        return ", ".join(
            f"{name} {before or EMPTY_FIELD} → {after or EMPTY_FIELD}"
            for name, (before, after) in event.changed.items()
        )
    facts = _facts(event.instance)
    return ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if value and value != _DEFAULTS.get(name) and name != "incarnation"
    )
