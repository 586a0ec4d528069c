"""What was measured, as tables for a terminal and as a page of the documentation."""

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
    """A page with those of its sections replaced that another has, and new ones at its end. What
    stands above the first section is the newer one's."""
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
        "Written by `make bench ARGS=--write`, or in parts with `--only`. Each number is the "
        "median of interleaved rounds, as many as its section says, or of more and shorter "
        "ones that add up to as much. A ratio is the median of the rounds' own ratios, since the "
        "machine's noise lasts longer than a round, and in brackets is between what "
        "that median lies with 95 % confidence. "
        "Where the target is in between as well, it is unclear whether it is met. Compare ratios, "
        "not numbers: those come and go with what else the machine does."
    )
    yield ""
    yield from (f"- {line}" for line in machine)
    for section in sections:
        yield from ("", f"## {section.title}", "", f"{rounds} rounds of {seconds:g} s a side.")
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
    """One for each line that does not surely meet its target, or could not be measured."""
    for line in section.lines:
        value = line.ratio or line.measured
        remark = f" {line.remark}" if line.remark else ""
        if not line.measured:
            yield f"{line.what}:{remark}."
        elif line.met == "no":
            yield f"{line.what} misses its target: {value}, should be {line.target}.{remark}"
        elif line.met == "unclear":
            yield f"{line.what} may miss its target, {line.target}: {value}.{remark}"
