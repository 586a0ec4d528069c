"""What `mooring migrate jxt` says of what it found, and of what it did."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mooring.cli.printing import count_of, show, show_json
from mooring.cli.telling import note, warn
from mooring.model import JSON

if TYPE_CHECKING:
    from mooring.migrate.jxt.plan import Step
    from mooring.migrate.jxt.settling import Settled


def show_steps(steps: Sequence[Step], as_json: bool) -> None:
    """What is not as it should be, and then how many of each; as JSON, everything."""
    from mooring.migrate.jxt.plan import counted

    shown = [step for step in steps if as_json or step.verdict != "equal"]
    show(
        shown,
        {
            "tenant": lambda step: str(step.unit or ""),
            "key": lambda step: step.name,
            "verdict": lambda step: step.verdict,
            "why": lambda step: str(step),
        },
        _record,
        as_json=as_json,
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(steps).items())
    note(counts or "there are no old keys here: is --namespace right?")
    sys.stdout.flush()


def _record(step: Step) -> Mapping[str, JSON]:
    return {
        "tenant": step.unit or None,
        "key": step.name,
        "verdict": step.verdict,
        "why": str(step),
        "revision": step.modified or None,
    }


_BOTH = "both were changed: the later counts"


def _show_settled(done: Sequence[Settled], as_json: bool) -> None:
    if as_json:
        for settled in done:
            show_json(settled_record(settled))
        return
    rows: list[tuple[int, str, str, str]] = [
        (settled.unit, each.path, each.move, _BOTH if each.conflict else "")
        for settled in done
        for each in settled.changes
    ]
    rows += [(settled.unit, each, "index", "") for settled in done for each in settled.mended]
    show(
        rows,
        {
            "tenant": lambda row: str(row[0] or ""),
            "part": lambda row: row[1],
            "done": lambda row: row[2],
            "why": lambda row: row[3],
        },
        lambda row: {},
        as_json=False,
    )
    for settled in done:
        for problem in settled.problems:
            warn(f"tenant {settled.unit}: {problem}" if settled.unit else problem)


def settled_record(settled: Settled) -> Mapping[str, JSON]:
    return {
        "tenant": settled.unit or None,
        "changes": [
            {"part": each.path, "move": each.move, "conflict": each.conflict}
            for each in settled.changes
        ],
        "mended": list(settled.mended),
        "problems": list(settled.problems),
        "strays": list(settled.strays),
    }


def show_copied(done: Mapping[int, Settled], as_json: bool) -> None:
    _show_settled(list(done.values()), as_json)
    count = sum(len(each.changes) for each in done.values())
    mended = sum(len(each.mended) for each in done.values())
    tenants = sum(bool(unit and each.changes) for unit, each in done.items())
    common = done[0].changes if 0 in done else []
    of = [count_of(tenants, "tenant")] if tenants else []
    of += ["what concerns all"] if common else []
    if mended:
        note(f"{count_of(mended, 'index', 'indexes')} mended")
    parts = f"{count_of(count, 'part')} of {' and of '.join(of)}"
    note(f"{parts} written" if count else "nothing to write")
    sys.stdout.flush()
