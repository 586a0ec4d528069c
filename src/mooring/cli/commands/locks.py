"""`mooring locks`: locks and elections with their holders and waiters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from mooring.cli.io.connect import open_hub
from mooring.cli.io.options import JSONOption, StoreOption
from mooring.cli.io.streams import note
from mooring.cli.io.tables import Columns, show
from mooring.locks.inspect import Contender
from mooring.model import JSON


class ContenderRow(NamedTuple):
    lock: str
    holds: bool
    contender: Contender


async def locks(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="only names with this prefix")
    ] = "",
    as_json: JSONOption = False,
    store: StoreOption = "",
) -> None:
    """List locks and elections with their holders and waiters."""
    async with open_hub(store) as hub:
        rows = [
            ContenderRow(lock.name, holds, contender)
            for lock in await hub.locks(prefix)
            for holds, contenders in ((True, lock.holders), (False, lock.waiting))
            for contender in contenders
        ]
    if not rows:
        note("no locks are held")
    columns: Columns[ContenderRow] = {
        "lock": lambda row: row.lock,
        "state": lambda row: "held" if row.holds else "waiting",
        "kind": lambda row: row.contender.kind,
        "by": lambda row: row.contender.by or _text(row.contender.value),
        "token": lambda row: str(row.contender.token),
        "lease": lambda row: f"{row.contender.lease:x}",
    }
    show(rows, columns, _record, as_json=as_json, spare=("lease", "kind"))


def _record(row: ContenderRow) -> Mapping[str, JSON]:
    contender = row.contender
    return {
        "lock": row.lock,
        "state": "held" if row.holds else "waiting",
        "kind": contender.kind or None,
        "by": contender.by or None,
        "value": _text(contender.value) or None,
        "token": contender.token,
        "lease": f"{contender.lease:x}",
        "key": _text(contender.key),
    }


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
