"""Fails a test if asyncio logs an error, such as an exception that was never retrieved."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest

from mooring.grpc.subchannels import Subchannel

_follow = Subchannel.follow


class AsyncioErrors(logging.Handler):
    """Collects the errors. `caplog` is not enough: a fixture that ends sees only what was logged
    during teardown."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._reports: list[str] = []
        self.abandoned_watches = 0
        """Waits for a change of a channel's state that were cancelled. gRPC has no way to cancel
        them itself (https://github.com/grpc/grpc/issues/3064), and completes them when the last
        call of the closed channel is collected. A test may keep a call for longer than its loop;
        then gRPC reports that the loop is closed, once for each. Only those of this test and the
        one before count."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        of_closed_loop = str(error) == "Event loop is closed"
        if "PollerCompletionQueue" in record.getMessage() and of_closed_loop:
            self.abandoned_watches -= 1
            if self.abandoned_watches >= 0:
                return
        self._reports.append(self.format(record))

    async def follow(self, subchannel: Subchannel) -> None:
        try:
            await _follow(subchannel)
        except asyncio.CancelledError:
            self.abandoned_watches += 1
            raise

    def take(self) -> str:
        reports, self._reports = self._reports, []
        return "\n".join(reports)


@pytest.fixture(scope="session")
def asyncio_errors() -> Iterator[AsyncioErrors]:
    errors = AsyncioErrors()
    logging.getLogger("asyncio").addHandler(errors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subchannel, "follow", lambda subchannel: errors.follow(subchannel))
        yield errors
    logging.getLogger("asyncio").removeHandler(errors)
    assert (after := errors.take()) == "", f"after the last test: {after}"


@pytest.fixture(autouse=True)
def nothing_is_left_running(asyncio_errors: AsyncioErrors) -> Iterator[None]:
    """An error that an event loop reports fails this test, or the next one if it is late."""
    assert (before := asyncio_errors.take()) == "", f"by an earlier test: {before}"
    earlier = asyncio_errors.abandoned_watches
    yield
    if asyncio_errors.abandoned_watches:
        asyncio_errors.abandoned_watches -= max(earlier, 0)
        gc.collect()
    assert asyncio_errors.take() == ""
