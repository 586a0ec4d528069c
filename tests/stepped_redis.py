"""A Redis server with its own wall clock, which tests step forward and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mooring.testing.redis import RedisServer
from mooring.testing.servers import ProgramNotFound

_FAKETIME = "usr/lib/*/faketime/libfaketime.so.1"


def find_faketime() -> Path:
    """The library that gives a server its own clock, below `.tools` or in the system."""
    for root in (Path.cwd() / ".tools/faketime", Path("/")):
        for library in root.glob(_FAKETIME):
            return library
    raise ProgramNotFound(
        "libfaketime is not installed: make tools (or, on Debian: apt-get install libfaketime)"
    )


class SteppedRedis(RedisServer):
    """Requires libfaketime, and the series 6.2 or valkey-9: the allocator of Debian's 7.0 does not
    start under it."""

    def __init__(self, folder: Path, *, series: str, flags: Sequence[str] = ()) -> None:
        super().__init__(folder, series=series, flags=flags)
        self._clock = folder / "clock"
        self._ahead = 0.0
        self.step_clock(0.0)
        self.arguments[:0] = [
            *("env", f"LD_PRELOAD={find_faketime()}", f"FAKETIME_TIMESTAMP_FILE={self._clock}"),
            *("FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
        ]

    def step_clock(self, seconds: float) -> None:
        """Step the wall clock of the server forward or back."""
        self._ahead += seconds
        written = self._clock.with_suffix(".new")
        written.write_text(f"{self._ahead:+f}\n")
        written.replace(self._clock)  # atomically, since the server may read it at any time
