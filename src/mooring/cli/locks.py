"""`mooring locks`: who holds what, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from mooring.cli.options import JSONOption, StoreOption
from mooring.cli.printing import show
from mooring.cli.reaching import reach, run_command
from mooring.locks.observing import Contender, LockInfo
from mooring.model import JSON


class Row(NamedTuple):
    name: str
    holds: bool
    contender: Contender


def locks(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="locks whose names start so; default: all")
    ] = "",
    store: StoreOption = "",
    as_json: JSONOption = False,
) -> None:
    """Show who holds locks, leads elections, and waits for them."""
    run_command(_locks(prefix, store, as_json))


async def _locks(prefix: str, store: str, as_json: bool) -> None:
    async with reach(store, "tree") as hub:
        found = await hub.locks(prefix)
    columns = {
        "lock": lambda row: row.name,
        "state": lambda row: "held" if row.holds else "waits",
        "kind": lambda row: row.contender.kind,
        "by": lambda row: row.contender.by or _text(row.contender.value),
        "token": lambda row: str(row.contender.token),
        "lease": lambda row: f"{row.contender.lease:x}",
    }
    rows = [row for info in found for row in _rows(info)]
    show(rows, columns, _record, as_json=as_json, spare=("lease", "kind"))


def _rows(info: LockInfo) -> list[Row]:
    return [
        *(Row(info.name, True, each) for each in info.holders),
        *(Row(info.name, False, each) for each in info.waiting),
    ]


def _record(row: Row) -> Mapping[str, JSON]:
    contender = row.contender
    return {
        "lock": row.name,
        "state": "held" if row.holds else "waits",
        "kind": contender.kind or None,
        "by": contender.by or None,
        "value": _text(contender.value) or None,
        "token": contender.token,
        "lease": f"{contender.lease:x}",
        "key": _text(contender.key),
    }


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
