"""Pure tests: no server, and a clock that jumps (see tests/virtual_time.py)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_servers() -> Iterator[None]:
    """Fail a test that starts a program; another Python may show what an import loads."""
    start = subprocess.Popen.__init__

    def checked(self: Any, command: Any, *arguments: Any, **named: Any) -> None:
        program = command if isinstance(command, str) else str(command[0])
        assert program == sys.executable, f"a unit test starts {program}: move it out of tests/unit"
        start(self, command, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", checked)
        yield
