"""What no text for people contains."""

from __future__ import annotations

import re

PYTHONS = re.compile(
    r"\\x|\\u|b'|b\"|Expected `|<class|Traceback|<unicode string>|\bNone\b|\('[^']*', "
)
"""Python's notation, and texts of libraries."""
