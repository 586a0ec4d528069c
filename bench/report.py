"""Renders the results as tables for a terminal and as a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import Line, Section

_STYLES: dict[str | None, str] = {"no": "bold red", "unclear": "yellow"}
_COLUMNS = ("what", "ours", "against", "ratio", "target", "met")


def show(console: Console, machine: Sequence[str], sections: Sequence[Section]) -> None:
    console.print()
    for line in machine:
        console.print(line, highlight=False, style="dim")
    for section in sections:
        table = Table(*_COLUMNS, title=section.title, title_justify="left", box=box.SIMPLE)
        for row in section.lines:
            table.add_row(*_cells(row), style=_STYLES.get(row.met, ""))
        console.print(table)
        for sentence in _sentences(section):
            console.print(f"  {sentence}", highlight=False)


def page(machine: Sequence[str], sections: Sequence[Section], rounds: int, seconds: float) -> str:
    return "\n".join(_page(machine, sections, rounds, seconds)) + "\n"


def merged(before: str, after: str) -> str:
    """A page with its sections replaced by those of a newer page, and new sections at the end. The
    text above the first section comes from the newer page."""
    _, *old = _split(before)
    head, *new = _split(after)
    sections = {_title(section): section for section in old}
    sections.update({_title(section): section for section in new})
    return "\n\n".join(part.strip("\n") for part in (head, *sections.values())) + "\n"


def _split(page: str) -> list[str]:
    return re.split(r"^(?=## )", page.rstrip("\n") + "\n", flags=re.MULTILINE)


def _title(section: str) -> str:
    return section.partition("\n")[0]


def _page(
    machine: Sequence[str], sections: Sequence[Section], rounds: int, seconds: float
) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield (
        "This page compares the performance of Mooring with that of the bare drivers and of "
        "other clients. `make bench ARGS=--write` generates it; with `--only`, it updates "
        "selected sections. Each number is the median of interleaved rounds: as many as its "
        "section states, or more and shorter ones with the same total duration. A ratio is the "
        "median of the ratios of each round, because machine noise lasts longer than a round; "
        "its 95 % confidence interval follows in brackets. If the interval includes the target, "
        "the result is unclear. Compare ratios, not absolute numbers: those vary with other "
        "load on the machine."
    )
    yield ""
    yield from (f"- {line}" for line in machine)
    for section in sections:
        count = "1 round" if rounds == 1 else f"{rounds} rounds"
        yield from ("", f"## {section.title}", "", f"{count} of {seconds:g} s per side.")
        yield from ("", section.text, "")
        yield f"| {' | '.join(_COLUMNS)} |"
        yield "|---|---:|---|---:|---:|---|"
        yield from (f"| {' | '.join(_cells(line))} |" for line in section.lines)
        if sentences := list(_sentences(section)):
            yield ""
            yield from (f"- {sentence}" for sentence in sentences)


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.what,
        line.measured or "not measured",
        line.against or "–",
        "–" if line.ratio is None else str(line.ratio),
        "–" if line.target is None else str(line.target),
        line.met or "–",
    )


def _sentences(section: Section) -> Iterator[str]:
    """One sentence for each row that misses or may miss its target, or was not measured."""
    for line in section.lines:
        value = line.ratio or line.measured
        remark = f" {line.remark}" if line.remark else ""
        if not line.measured:
            yield f"{line.what}:{remark}."
        elif line.met == "no":
            yield f"{line.what} misses its target: {value}, should be {line.target}.{remark}"
        elif line.met == "unclear":
            yield f"{line.what} may miss its target, {line.target}: {value}.{remark}"
