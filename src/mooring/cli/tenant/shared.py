"""`mooring tenant common` and `mooring tenant platform`: what all tenants share."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mooring.cli import printing
from mooring.cli.options import JSONOption, NamespaceOption, RevealOption, StoreOption
from mooring.cli.printing import show_json, words
from mooring.cli.reaching import run_command
from mooring.cli.telling import note
from mooring.cli.tenant.history import show_history
from mooring.cli.tenant.options import (
    BaseOption,
    ByOption,
    NoteOption,
    NumberArgument,
    YesOption,
    expecting,
    must_agree,
    publisher,
)
from mooring.cli.tenant.publishing import show_differences, show_published
from mooring.errors import InvalidRequest, NotConfigured
from mooring.model import JSON
from mooring.tenants.changes import UNREADABLE
from mooring.tenants.files import read_value
from mooring.tenants.hiding import masked_field
from mooring.tenants.history import HistoryEntry
from mooring.tenants.keys import AREAS, NAMESPACE, SENTINEL, Area, area_of, field_of
from mooring.tenants.publishing import Difference, Held, Unread
from mooring.tenants.scribe import Published

HEALTH = "health"
"""The name of the health sentinel among the common settings."""

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="see `get` for those there are")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="show what would change, and write nothing")
]


def application(area: Area, about: str) -> typer.Typer:
    """The commands about one area."""
    app = typer.Typer(help=f"{about}: get, set, unset, history, rollback.", no_args_is_help=True)

    @app.command()
    def get(
        name: Annotated[str, typer.Argument(metavar="[KEY]", help="default: all of them")] = "",
        reveal: RevealOption = False,
        store: StoreOption = "",
        namespace: NamespaceOption = NAMESPACE,
        as_json: JSONOption = False,
    ) -> None:
        """Show the settings, or one of them as JSON. Secrets are masked."""
        found, health = run_command(_read(area, store, namespace))
        shown = {
            path.removeprefix(AREAS[area]): _shown(path, value, reveal)
            for path, value in sorted(found.parts.items())
        }
        if area == "common" and health is not None:
            shown[HEALTH] = health
        if reveal:
            note(f"the secrets of the {area} settings are shown in clear text")
        if name:
            if name not in shown:
                raise NotConfigured(f"there is no {AREAS[area]}{name}")
            typer.echo(json.dumps(shown[name], indent=2, ensure_ascii=False))
            return
        if as_json:
            show_json({"revision": found.revision, "values": shown})
            return
        printing.show(
            list(shown.items()),
            {"key": lambda row: row[0], "value": lambda row: words(row[1])},
            lambda row: {"key": row[0], "value": row[1]},
            as_json=False,
        )

    @app.command(name="set")
    def set_value(
        name: KeyArgument,
        value: Annotated[
            str, typer.Argument(metavar="VALUE", help="YAML or JSON; -: standard input")
        ],
        dry_run: DryRunOption = False,
        base: BaseOption = "",
        by: ByOption = "",
        text: NoteOption = "",
        store: StoreOption = "",
        namespace: NamespaceOption = NAMESPACE,
        as_json: JSONOption = False,
    ) -> None:
        """Set one of the settings, and print what that changed."""
        if area == "common" and name == HEALTH:
            raise InvalidRequest(
                f"{SENTINEL} cannot be set: every publish writes it, and so does "
                "`mooring tenant common beat`"
            )
        path = f"{AREAS[area]}{name}"
        wanted = _typed(value)
        if dry_run:
            found = run_command(_diff(path, wanted, base, store, namespace))
            show_differences(area, found, as_json)
            return
        show_published(run_command(_put(path, wanted, base, by, text, store, namespace)), as_json)

    @app.command()
    def unset(
        name: KeyArgument,
        base: BaseOption = "",
        by: ByOption = "",
        text: NoteOption = "",
        store: StoreOption = "",
        namespace: NamespaceOption = NAMESPACE,
        as_json: JSONOption = False,
    ) -> None:
        """Remove one of the settings. The history keeps it."""
        health = area == "common" and name == HEALTH
        path = SENTINEL if health else f"{AREAS[area]}{name}"
        published = run_command(_remove(path, base, by, text, store, namespace))
        if health:
            note("the health sentinel is removed: the next publish writes it again")
        else:
            show_published(published, as_json)

    @app.command()
    def history(
        number: Annotated[
            int, typer.Argument(metavar="[NUMBER]", min=0, help="show what that entry changed")
        ] = 0,
        store: StoreOption = "",
        namespace: NamespaceOption = NAMESPACE,
        as_json: JSONOption = False,
    ) -> None:
        """Show who changed the settings, when, and what, oldest first."""
        show_history(area, run_command(_history(area, store, namespace)), number, as_json)

    @app.command()
    def rollback(
        number: NumberArgument,
        yes: YesOption = False,
        base: BaseOption = "",
        by: ByOption = "",
        text: NoteOption = "",
        store: StoreOption = "",
        namespace: NamespaceOption = NAMESPACE,
        as_json: JSONOption = False,
    ) -> None:
        """Make the settings what they were after an entry of the history; 0: before the first.

        It shows what changes. In a terminal it asks first; elsewhere it needs --yes.
        """
        changes = run_command(_diff_rollback(area, number, store, namespace))
        if not as_json:
            show_differences(area, changes, as_json)
        if changes:
            must_agree(f"Roll the {area} settings back to version {number}?", yes)
        work = _rollback(area, number, base, by, text, store, namespace)
        show_published(run_command(work), as_json)

    return app


common = application("common", "How requests name tenants, and where their files lie")
platform = application("platform", "The configuration of the platform")


@common.command()
def beat(store: StoreOption = "", namespace: NamespaceOption = NAMESPACE) -> None:
    """Write the health sentinel: the time at which a publisher last worked."""
    run_command(_beat(store, namespace))


def _typed(value: str) -> JSON:
    text = sys.stdin.buffer.read().decode() if value == "-" else value
    return read_value(text, of="standard input" if value == "-" else "VALUE")


def _shown(path: str, value: JSON | Unread, reveal: bool) -> JSON:
    if isinstance(value, Unread):
        return UNREADABLE
    return value if reveal else masked_field(field_of(path), value)


async def _read(area: Area, store: str, namespace: str) -> tuple[Held, JSON]:
    async with publisher(store, namespace) as publishing:
        return await publishing.look(area), await publishing.health()


async def _diff(path: str, value: JSON, base: str, store: str, namespace: str) -> list[Difference]:
    require = expecting(area_of(path), base)
    async with publisher(store, namespace) as publishing:
        return await publishing.diff_common(path, value, require=require)


async def _put(
    path: str, value: JSON, base: str, by: str, text: str, store: str, namespace: str
) -> Published:
    require = expecting(area_of(path), base)
    async with publisher(store, namespace, by) as publishing:
        return await publishing.put_common(path, value, note=text, require=require)


async def _remove(
    path: str, base: str, by: str, text: str, store: str, namespace: str
) -> Published:
    require = expecting(area_of(path), base)
    async with publisher(store, namespace, by) as publishing:
        return await publishing.remove_common(path, note=text, require=require)


async def _history(area: Area, store: str, namespace: str) -> list[HistoryEntry]:
    async with publisher(store, namespace) as publishing:
        return await publishing.history(area)


async def _diff_rollback(area: Area, number: int, store: str, namespace: str) -> list[Difference]:
    async with publisher(store, namespace) as publishing:
        return await publishing.diff_rollback(area, number)


async def _rollback(
    area: Area, number: int, base: str, by: str, text: str, store: str, namespace: str
) -> Published:
    async with publisher(store, namespace, by) as publishing:
        return await publishing.rollback(area, number, note=text, require=expecting(area, base))


async def _beat(store: str, namespace: str) -> None:
    async with publisher(store, namespace) as publishing:
        await publishing.beat()
