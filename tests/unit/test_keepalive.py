"""Responses belong to renewals by their position in the stream."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from mooring.errors import Unavailable
from mooring.store.etcd.keepalive import _KeepAliveStream


async def test_a_late_response_does_not_count_for_a_later_renewal():
    """Counted from when the later renewal was sent, the lease would seem to live longer."""
    sent: list[Any] = []
    renewals = _KeepAliveStream.__new__(_KeepAliveStream)
    renewals._waiting = deque()
    stream: Any = SimpleNamespace(
        send=sent.append,
        heard=time.monotonic() + 60,
        endpoint=SimpleNamespace(address="h:2379"),
        end_if_unused=lambda: None,
    )
    renewals.stream = stream
    with pytest.raises(Unavailable, match="no response"):
        await renewals.renew(7, 0.01)
    second = asyncio.get_running_loop().create_task(renewals.renew(7, 5))
    await asyncio.sleep(0)
    renewals._received(SimpleNamespace(ID=7, TTL=9))
    await asyncio.sleep(0)
    assert not second.done(), "that was the answer to the first"
    renewals._received(SimpleNamespace(ID=7, TTL=10))
    assert await second == 10
    assert len(sent) == 2
