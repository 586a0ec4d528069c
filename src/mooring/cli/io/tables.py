"""Records as tables in a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import typer

from mooring.formatting import printable

if TYPE_CHECKING:
    from rich.text import Text

    from mooring.model import JSON

T = TypeVar("T")

_GAP = 2  # characters between two columns
EMPTY_FIELD = "-"
"""An empty field in a pipe: `read` and awk would skip an empty string."""


class Styled(NamedTuple):
    """A cell with a colour for terminals."""

    text: str
    style: str


Columns: TypeAlias = Mapping[str, Callable[[T], str | Styled]]
"""The cell of an item, by heading."""


def show(
    items: Sequence[T],
    columns: Columns[T],
    record: Callable[[T], Mapping[str, JSON]],
    *,
    as_json: bool,
    spare: Collection[str] = (),
) -> None:
    """Print items. A table leaves out empty columns, and the `spare` ones if the terminal is too
    narrow. A pipe gets all columns."""
    if not as_json:
        show_rows(columns, [[cell(item) for cell in columns.values()] for item in items], spare)
        return
    for item in items:
        show_json(record(item))


def show_rows(
    headings: Iterable[str], rows: Iterable[Sequence[str | Styled]], spare: Collection[str] = ()
) -> None:
    """Print rows, as `show` does."""
    styled = [[_styled(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_table(headings, styled, spare)
        return
    for row in styled:
        typer.echo("\t".join(cell.text or EMPTY_FIELD for cell in row))


def show_fields(
    fields: Mapping[str, JSON], headings: tuple[str, str] = ("key", "value"), *, as_json: bool
) -> None:
    """Print one object: a row for each field, or JSON."""
    if as_json:
        show_json(fields)
    else:
        show_rows(headings, [(name, as_text(value)) for name, value in fields.items()])


def _show_table(
    headings: Iterable[str], rows: Sequence[Sequence[Styled]], spare: Collection[str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = {
        heading: [Text(*cell) for cell in cells]
        for heading, *cells in zip(headings, *rows, strict=True)
        if any(cell.text for cell in cells)
    }
    console = Console(highlight=False)
    for heading in reversed([heading for heading in columns if heading in spare]):
        if _width(columns) > console.width:
            del columns[heading]
    if not columns:
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)


def _width(columns: Mapping[str, Sequence[Text]]) -> int:
    from rich.cells import cell_len

    cells = (
        [cell_len(heading), *(cell.cell_len for cell in column)]
        for heading, column in columns.items()
    )
    return sum(max(widths) + _GAP for widths in cells)


def show_json(record: JSON | Mapping[str, JSON]) -> None:
    typer.echo(json.dumps(record, ensure_ascii=False))


def as_text(value: JSON) -> str:
    """A value for people and shells: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def yes_no(flag: bool) -> Styled:
    return Styled("yes", "") if flag else Styled("no", "red")


def _styled(cell: str | Styled) -> Styled:
    return Styled(printable(cell), "") if isinstance(cell, str) else cell
