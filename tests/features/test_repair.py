"""An instance's place in a registry: when it is in doubt, and when no longer."""

from __future__ import annotations

import mooring
from mooring import Instance
from mooring.errors import Unavailable
from mooring.store import everything
from tests.waiting import eventually


async def test_a_doubt_that_comes_and_goes_unseen_leaves_it_registered():
    """Between two looks at what is in doubt there was one, just as it told its state."""
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
