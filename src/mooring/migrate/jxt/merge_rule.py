"""Which side of a part counts, the old or the new one, if one or both have changed since they were
last in sync. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Move: TypeAlias = Literal["", "to new", "to old", "out of new", "out of old"]
"""How to move a part; empty: not at all."""


class Base(NamedTuple):
    """The digests of both sides when they were last in sync; empty for a missing part."""

    old: str
    new: str


NO_BASE = Base("", "")
"""They were never in sync."""


class Side(NamedTuple):
    digest: str = ""
    """Empty if the part does not exist."""
    revision: int = 0


class MergeDecision(NamedTuple):
    move: Move = ""
    conflict: bool = False
    """Both sides changed, and one change is lost."""
    late: bool = False
    """A program has written the old side after the cut-over."""


def decide(old: Side, new: Side, base: Base, *, same: bool) -> MergeDecision:
    """How to sync both sides. `same`: they have the same meaning."""
    if same or old.digest == new.digest == "":
        return MergeDecision()
    old_changed, new_changed = old.digest != base.old, new.digest != base.new
    if not old_changed and not new_changed:
        return MergeDecision()
    conflict = old_changed and new_changed
    # In a conflict a deletion loses, and else the earlier change.
    later = (bool(old.digest), old.revision) > (bool(new.digest), new.revision)
    if later if conflict else old_changed:
        return MergeDecision("to new" if old.digest else "out of new", conflict)
    return MergeDecision("to old" if new.digest else "out of old", conflict)


def decide_after_cutover(old: Side, new: Side, base: Base, *, same: bool) -> MergeDecision:
    """As `decide`, but never follows the old side. Late writes stay until the new side changes."""
    if same or old.digest == new.digest == "":
        return MergeDecision()
    late = old.digest != base.old
    if new.digest == base.new:
        return MergeDecision(late=late)
    return MergeDecision("to old" if new.digest else "out of old", late=late)
