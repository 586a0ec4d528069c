"""The outcome of a command that ran in the process of its test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


Command = Callable[..., Done]
