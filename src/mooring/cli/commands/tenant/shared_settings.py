"""`mooring tenant common` and `mooring tenant platform`: settings that all tenants share."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mooring.cli.commands.tenant.changes import show_diff, show_published
from mooring.cli.commands.tenant.history import roll_back, show_history
from mooring.cli.io.connect import TenantTarget
from mooring.cli.io.options import (
    DryRunOption,
    EntryArgument,
    EntryFilter,
    JSONOption,
    RevealOption,
    WriteOptions,
    YesOption,
    read_stdin,
)
from mooring.cli.io.streams import note
from mooring.cli.io.tables import show_fields, show_json
from mooring.cli.typer_extensions import CommandGroup
from mooring.errors import InvalidRequest, NotConfigured
from mooring.model import JSON
from mooring.tenants.diff import masked_part
from mooring.tenants.document import read_value
from mooring.tenants.keys import AREAS, SENTINEL, Area
from mooring.tenants.parts import StoredParts, UnreadablePart
from mooring.tenants.publish.publisher import Publisher

HEALTH = "health"
"""The name of the health sentinel among the common settings."""

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="name of the setting; `get` lists those that are set")
]


def settings_group(area: Area, help: str) -> CommandGroup:
    """The commands for the settings of one area."""
    app = CommandGroup(help)

    @app.command()
    def get(
        target: TenantTarget,
        name: Annotated[
            str, typer.Argument(metavar="KEY", help="print only this setting, as JSON")
        ] = "",
        reveal: RevealOption = False,
        as_json: JSONOption = False,
    ) -> None:
        """Show the settings, with secrets masked."""

        async def read(publisher: Publisher) -> tuple[StoredParts, JSON]:
            return await publisher.look(area), await publisher.health()

        stored, health = target.run(read)
        values = {
            path.removeprefix(AREAS[area]): value
            if reveal and not isinstance(value, UnreadablePart)
            else masked_part(path, value)
            for path, value in sorted(stored.parts.items())
        }
        if area == "common" and health is not None:
            values[HEALTH] = health
        if reveal:
            note(f"the secrets of the {area} settings are shown in clear text")
        if name:
            if name not in values:
                raise NotConfigured(f"{AREAS[area]}{name} not found")
            typer.echo(json.dumps(values[name], indent=2, ensure_ascii=False))
        elif as_json:
            show_json({"revision": stored.revision, "values": values})
        else:
            show_fields(values, as_json=False)

    @app.command(name="set")
    def set_value(
        name: KeyArgument,
        value: Annotated[
            str, typer.Argument(metavar="VALUE", help="YAML or JSON; - reads standard input")
        ],
        write: WriteOptions,
        target: TenantTarget,
        dry_run: DryRunOption = False,
        as_json: JSONOption = False,
    ) -> None:
        """Change a setting and print the changes."""
        if area == "common" and name == HEALTH:
            raise InvalidRequest(
                f"{SENTINEL} cannot be set: every publish writes it, and so does "
                "`mooring tenant common beat`"
            )
        path = f"{AREAS[area]}{name}"
        new = (
            read_value(read_stdin(), of="standard input")
            if value == "-"
            else read_value(value, of="VALUE")
        )
        require = write.require(area)
        if dry_run:
            changes = target.run(
                lambda publisher: publisher.diff_common(path, new, require=require)
            )
            show_diff(area, changes, as_json)
            return
        result = target.run(
            lambda publisher: publisher.put_common(path, new, note=write.note, require=require),
            write.by,
        )
        show_published(result, as_json)

    @app.command()
    def unset(
        name: KeyArgument, write: WriteOptions, target: TenantTarget, as_json: JSONOption = False
    ) -> None:
        """Remove a setting. The history keeps it."""
        is_health = area == "common" and name == HEALTH
        path = SENTINEL if is_health else f"{AREAS[area]}{name}"
        result = target.run(
            lambda publisher: publisher.remove_common(
                path, note=write.note, require=write.require(area)
            ),
            write.by,
        )
        if is_health:
            note("the health sentinel is removed: the next publish writes it again")
        else:
            show_published(result, as_json)

    @app.command()
    def history(target: TenantTarget, number: EntryFilter = 0, as_json: JSONOption = False) -> None:
        """Show the history of the settings, oldest entry first."""
        entries = target.run(lambda publisher: publisher.history(area))
        show_history(area, entries, number, as_json)

    @app.command()
    def rollback(
        number: EntryArgument,
        write: WriteOptions,
        target: TenantTarget,
        yes: YesOption = False,
        as_json: JSONOption = False,
    ) -> None:
        """Restore the state that the settings had after an entry of their history.

        NUMBER 0 restores the state before the first entry. Shows the changes and asks for
        confirmation; without a terminal, --yes is required.
        """
        roll_back(area, number, write, target, yes, as_json)

    return app


common = settings_group(
    "common",
    "Manage how requests identify tenants (`resolver`), and where tenant files are stored "
    "(`storage-directory`).",
)
platform = settings_group("platform", "Manage the configuration of the platform.")


@common.command()
def beat(target: TenantTarget) -> None:
    """Write the health sentinel: the time at which a publisher was last active."""
    target.run(lambda publisher: publisher.beat())
