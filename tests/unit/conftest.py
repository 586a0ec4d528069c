"""Pure tests: no server, and a clock that does not wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time"):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


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
