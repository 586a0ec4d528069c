"""Which server of a domain is called, and what follows a call that failed. Pure."""

from __future__ import annotations

import enum
import http.client
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple


class Server(NamedTuple):
    """A server at a place: one that moved is another, though its UUID is the same."""

    uuid: str
    url: str


class Choice:
    """The servers of a domain, and the one that is called: the primary.

    It is chosen at random. It moves when it is gone from the list and when calls to it failed,
    and for no other reason; a URL that changed under its UUID is followed.
    """

    def __init__(self, choose: Callable[[Sequence[Server]], Server] = random.choice) -> None:
        self.primary: Server | None = None
        """None only where there are no servers."""
        self.servers: tuple[Server, ...] = ()
        self._choose = choose

    def learn(self, servers: Iterable[Server]) -> None:
        """The servers as they are now."""
        self.servers = tuple(servers)
        was = "" if self.primary is None else self.primary.uuid
        here = next((server for server in self.servers if server.uuid == was), None)
        if here is None and self.servers:
            here = self._choose(self.servers)
        self.primary = here

    def leave(self, failed: Collection[Server]) -> Server | None:
        """The server to call once these failed: the primary where it did not, which somebody else
        may have moved already; else another, which becomes the primary. None: no other is known."""
        if self.primary is None or self.primary in failed:
            others = [server for server in self.servers if server not in failed]
            if not others:
                return None
            self.primary = self._choose(others)
        return self.primary


class Decision(enum.Enum):
    """What to do about a call that failed."""

    PASS_THROUGH = "the function itself raised it"
    NEXT = "try another server"
    PAUSE = "every server that is known failed: wait a little, and try them again"
    GIVE_UP = "it was tried often enough"
    NO_SERVER = "there is nobody to call"


def decide(
    error: BaseException,
    *,
    servers: Collection[Server],
    failed: Collection[Server],
    tried: int,
    tries: int,
) -> Decision:
    """What to do about an error, given the list as it is now, those of it that failed this call
    since the last pause, and how often it was tried."""
    if not in_transit(error):
        return Decision.PASS_THROUGH
    if tried >= tries:
        return Decision.GIVE_UP
    if not servers:
        return Decision.NO_SERVER
    return Decision.PAUSE if all(server in failed for server in servers) else Decision.NEXT


def in_transit(error: BaseException) -> bool:
    """Whether a call failed on its way (refused, reset, cut off, not answered in time), and not in
    the function that was called."""
    return isinstance(error, (OSError, EOFError, http.client.HTTPException))
