"""What texts for users must not contain."""

from __future__ import annotations

import re

PYTHONS = re.compile(
    r"\\x|\\u|b'|b\"|Expected `|<class|Traceback|<unicode string>|\bNone\b|\('[^']*', "
)
"""Python notation and texts of libraries."""
