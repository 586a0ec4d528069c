"""Output of commands: tables in a terminal, tab-separated lines in a pipe, JSON; and notes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import typer

from mooring.formatting import printable
from mooring.model import JSON

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["log_crashes", "log_to_stderr", "note", "print_stderr", "printable", "warn"]


def print_stderr(line: str) -> None:
    """One line. Where the terminal is gone nobody hears it, and what was under way goes on."""
    with contextlib.suppress(OSError):
        typer.echo(line, err=True)


def note(text: str) -> None:
    print_stderr(f"mooring: {printable(text)}")


def warn(text: str) -> None:
    note(f"warning: {text}")


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())
        if record.exc_info:
            print_stderr(logging.Formatter().formatException(record.exc_info))


def log_crashes() -> None:
    """Of the library's log only what is a bug; commands tell the rest in their own words."""
    logger = logging.getLogger("mooring")
    if not logger.handlers:
        logger.addHandler(_Notes(logging.ERROR))


def log_to_stderr(*names: str) -> None:
    """Everything that these loggers tell people."""
    for name in names:
        logger = logging.getLogger(name)
        if logger.handlers:
            continue
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_Notes())


_EVERY = 5.0  # seconds between two lines


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a function that reports how much is done, and the total if it is known."""
    from rich.console import Console  # slow to load, and only a terminal needs the rest

    console = Console(stderr=True)
    last = time.monotonic()

    def line(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            print_stderr(f"{what} {done}" if total is None else f"{what} {done} of {total}")

    if not console.is_terminal:
        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


T = TypeVar("T")


class Styled(NamedTuple):
    """A cell with a colour for terminals."""

    text: str
    style: str


Columns: TypeAlias = Mapping[str, Callable[[T], str | Styled]]
"""What to show of an item, by heading."""

_GAP = 2  # between two columns
EMPTY_FIELD = "-"
"""An empty field in a pipe: `read` and awk would skip it."""


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 tenant`, `2 tenants`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def show(
    items: Sequence[T],
    columns: Columns[T],
    record: Callable[[T], Mapping[str, JSON]],
    *,
    as_json: bool,
    spare: Collection[str] = (),
) -> None:
    """Print items. A table leaves out columns without any content, and those that are `spare`
    where the terminal is too narrow; a pipe gets them all."""
    if as_json:
        for item in items:
            show_json(record(item))
        return
    rows = [[_clean(cell(item)) for cell in columns.values()] for item in items]
    if sys.stdout.isatty():
        _show_table(columns, rows, spare)
        return
    for row in rows:
        typer.echo("\t".join(cell.text or EMPTY_FIELD for cell in row))


def _show_table(
    headings: Iterable[str], rows: Sequence[Sequence[Styled]], spare: Collection[str]
) -> None:
    from rich.console import Console
    from rich.text import Text

    kept = {
        heading: [Text(*cell) for cell in cells]
        for heading, *cells in zip(headings, *rows, strict=True)
        if any(cell.text for cell in cells)
    }
    console = Console(highlight=False)
    for heading in reversed([heading for heading in kept if heading in spare]):
        if _width(kept) > console.width:
            del kept[heading]
    if kept:
        console.print(_table(kept))


def _width(columns: Mapping[str, Sequence[Text]]) -> int:
    from rich.cells import cell_len

    cells = (
        [cell_len(heading), *(cell.cell_len for cell in column)]
        for heading, column in columns.items()
    )
    return sum(max(widths) + _GAP for widths in cells)


def _table(columns: Mapping[str, Sequence[Text]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def show_json(record: JSON | Mapping[str, JSON]) -> None:
    typer.echo(json.dumps(record, ensure_ascii=False))


def as_text(value: JSON) -> str:
    """A value for people and shells: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def yes_no(flag: bool) -> Styled:
    return Styled("yes", "") if flag else Styled("no", "red")


def number(value: float) -> int | float:
    """A number as a person would write it: 1, not 1.0."""
    return int(value) if float(value).is_integer() else value


def _clean(cell: str | Styled) -> Styled:
    return Styled(printable(cell), "") if isinstance(cell, str) else cell
