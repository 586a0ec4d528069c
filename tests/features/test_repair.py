"""The record of an instance in a registry: when it is in doubt, and when no longer."""

from __future__ import annotations

import mooring
from mooring import Instance
from mooring.errors import Unavailable
from mooring.store import everything
from tests.waiting import eventually


async def test_a_doubt_that_passes_unnoticed_leaves_the_instance_registered():
    """There was a doubt between two checks, just when it reported its state."""
    async with (
        mooring.connect(layout="plain:/services/") as hub,
        hub.register(Instance("echo", "10.0.0.1", 80)) as one,
    ):
        mirror = one._record._mirror  # type: ignore[attr-defined]
        last = (await hub.store.read(everything())).revision
        await eventually(lambda: mirror.mark == last, what="it hears of nothing else")
        mirror.error = Unavailable("a connection that was cut for a moment")
        one._enter("registered")
        assert one.state == "suspended"
        mirror.error = None
        await eventually(lambda: one.state == "registered")
