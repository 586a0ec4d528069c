"""Output that the migrations share: plans, verified files and deletions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import typer

from mooring.cli.io.streams import note
from mooring.cli.io.tables import Columns, show, show_json
from mooring.migrate import verified_file
from mooring.model import JSON


class PlannedStep(Protocol):
    @property
    def verdict(self) -> str: ...


S = TypeVar("S", bound=PlannedStep)


def show_plan(
    steps: Sequence[S],
    place: Columns[S],
    record: Callable[[S], Mapping[str, JSON]],
    verdicts: Iterable[str],
    *,
    is_notable: Callable[[S], bool],
    if_empty: str,
    as_json: bool,
) -> None:
    """Print the notable steps, or all as JSON, and the number of steps with each verdict."""
    show(
        [step for step in steps if as_json or is_notable(step)],
        {**place, "verdict": lambda step: step.verdict, "why": str},
        record,
        as_json=as_json,
    )
    note(verdict_counts(steps, verdicts) or if_empty)


def verdict_counts(steps: Iterable[PlannedStep], verdicts: Iterable[str]) -> str:
    """The number of steps with each verdict, in the order of `verdicts`: `2 missing, 1 equal`."""
    counts = Counter(step.verdict for step in steps)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if verdict in counts)


def reject_verified(file: Path, reason: str) -> NoReturn:
    """Remove the file of verified data, which is no longer correct, and exit with 1."""
    verified_file.discard(file)
    note(reason)
    raise typer.Exit(1)


def show_deleted(
    deleted: int, stays: Sequence[str], *, what: str, why_stays: str, as_json: bool
) -> None:
    """Print the result of `delete`, and exit with 1 if something stays."""
    if as_json:
        show_json({"deleted": deleted, "stays": list(stays)})
    for name in stays:
        note(f"{name} {why_stays}")
    note(f"{deleted} {what} deleted")
    if stays:
        raise typer.Exit(1)
