"""Which side counts, for one part. Pure.

The ledger remembers what each side held when both were level. So it is known which of them changed
since, and a change goes to the side that did not. Where both changed, the later write counts, and
a change counts more than a deletion: nothing is lost that somebody wrote last.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Move: TypeAlias = Literal["", "to new", "to old", "out of new", "out of old"]
"""What is to be done with a part; empty: nothing."""


class Base(NamedTuple):
    """What both sides held when they were level: digests, empty for nothing."""

    old: str
    new: str


NO_BASE = Base("", "")
"""They never were."""


class Side(NamedTuple):
    digest: str = ""
    """Empty: it is not there."""
    revision: int = 0
    """When it was written."""


class Decision(NamedTuple):
    move: Move = ""
    conflict: bool = False
    """Both sides changed, and one of them gives way."""


def decide(old: Side, new: Side, base: Base, *, same: bool) -> Decision:
    """What makes both sides level. `same`: they mean the same."""
    if same or old.digest == new.digest == "":
        return Decision()
    old_changed, new_changed = old.digest != base.old, new.digest != base.new
    if not old_changed and not new_changed:
        return Decision()
    if not new_changed:
        return Decision("to new" if old.digest else "out of new")
    if not old_changed:
        return Decision("to old" if new.digest else "out of old")
    if not new.digest:
        return Decision("to new", conflict=True)
    if not old.digest:
        return Decision("to old", conflict=True)
    return Decision("to new" if old.revision > new.revision else "to old", conflict=True)


class Following(NamedTuple):
    """What is to be done once the new side counts alone."""

    move: Move = ""
    stray: bool = False
    """Somebody still writes the old side."""


def decide_after(old: Side, new: Side, base: Base, *, same: bool) -> Following:
    """The same after the cut-over: the old side follows, and is never followed. What somebody
    writes there all the same stays until the new side changes."""
    if same or old.digest == new.digest == "":
        return Following()
    stray = old.digest != base.old
    if new.digest == base.new:
        return Following("", stray)
    return Following("to old" if new.digest else "out of old", stray)
