"""Names that people type: the nearest known one to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: what was probably meant, and what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"{meant} (there are {', '.join(known)})"
