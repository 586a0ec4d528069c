"""`mooring tenant common` and `mooring tenant platform`: what all tenants share."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Annotated

import typer

from mooring.cli.commands.tenant.history import roll_back, show_history
from mooring.cli.commands.tenant.options import (
    BaseOption,
    ByOption,
    NoteOption,
    NumberArgument,
    YesOption,
    expecting,
    publishing,
)
from mooring.cli.commands.tenant.publish import show_differences, show_published
from mooring.cli.io import output as printing
from mooring.cli.io.options import JSONOption, NamespaceOption, RevealOption, StoreOption
from mooring.cli.io.output import as_text, note, show_json
from mooring.errors import InvalidRequest, NotConfigured
from mooring.masking import masked_field
from mooring.model import JSON
from mooring.tenants.diff import UNREADABLE
from mooring.tenants.document import read_value
from mooring.tenants.keys import AREAS, NAMESPACE, SENTINEL, Area, field_of
from mooring.tenants.parts import StoredParts, UnreadablePart
from mooring.tenants.publish.publisher import Publisher

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
        found, health = publishing(partial(_read, area), store, namespace)
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
            {"key": lambda row: row[0], "value": lambda row: as_text(row[1])},
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
        require = expecting(area, base)
        if dry_run:
            found = publishing(
                lambda one: one.diff_common(path, wanted, require=require), store, namespace
            )
            show_differences(area, found, as_json)
            return
        published = publishing(
            lambda one: one.put_common(path, wanted, note=text, require=require),
            store,
            namespace,
            by,
        )
        show_published(published, as_json)

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
        published = publishing(
            lambda one: one.remove_common(path, note=text, require=expecting(area, base)),
            store,
            namespace,
            by,
        )
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
        entries = publishing(lambda one: one.history(area), store, namespace)
        show_history(area, entries, number, as_json)

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
        roll_back(area, number, yes, base, by, text, store, namespace, as_json)

    return app


common = application("common", "How requests name tenants, and where their files lie")
platform = application("platform", "The configuration of the platform")


@common.command()
def beat(store: StoreOption = "", namespace: NamespaceOption = NAMESPACE) -> None:
    """Write the health sentinel: the time at which a publisher last worked."""
    publishing(lambda one: one.beat(), store, namespace)


def _typed(value: str) -> JSON:
    text = sys.stdin.buffer.read().decode() if value == "-" else value
    return read_value(text, of="standard input" if value == "-" else "VALUE")


def _shown(path: str, value: JSON | UnreadablePart, reveal: bool) -> JSON:
    if isinstance(value, UnreadablePart):
        return UNREADABLE
    return value if reveal else masked_field(field_of(path), value)


async def _read(area: Area, publisher: Publisher) -> tuple[StoredParts, JSON]:
    return await publisher.look(area), await publisher.health()
