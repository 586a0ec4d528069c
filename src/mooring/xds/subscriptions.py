"""What one client was told of one type of resource, and what it must be told next. Pure.

Both kinds of stream are here: the *state of the world*, in which each answer stands by itself, and
the *incremental* one, in which an answer is a difference. A client answers each response, taking
it (ACK) or refusing it (NACK); until then it gets no other of that type. So a slow client is told
the latest state when it is ready, and nothing piles up for it. A refused version is not sent again;
the next change is sent all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from mooring.xds.resources import Resource

Heard = Literal["asked", "taken", "refused", "stale"]

Found = Resource | Literal["absent", "unknown"]
"""A resource; or that there is none of this name; or that it cannot be told yet."""

Find = Callable[[str], Found]

WILDCARD = "*"


class Answer(NamedTuple):
    """What is to be sent."""

    resources: Mapping[str, Resource]
    removed: tuple[str, ...] = ()
    """Told in an incremental stream only."""


class Subscription:
    """One type of resource on one stream. `whole`: an answer that leaves one out says that it does
    not exist, as with listeners and clusters; only those can be asked for without names."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.names: set[str] = set()
        self.wildcard = False
        self.awaited = ""
        """The nonce of the response that the client has not answered yet."""
        self._begun = False
        self._nonce = ""
        self._owed: set[str] = set()
        """Names that were just asked for: they are sent though the client may have them."""
        self._answer_owed = False
        """Whether an answer must be sent though there is nothing in it."""
        self._touched: set[str] = set()
        self._look = False
        """Whether every name must be looked at, and not only those that were touched."""
        self._given: dict[str, str] = {}
        """The versions that the client was told; empty for what does not exist."""
        self._last: set[str] = set()
        """What was in the last response."""
        self._refused: set[str] = set()
        """What was in responses that were refused, perhaps for another's sake."""

    @property
    def pending(self) -> bool:
        """Whether there may be something to send."""
        return bool(self._touched or self._owed or self._look or self._answer_owed)

    @property
    def owes(self) -> bool:
        """Whether the client waits for names that it just asked for."""
        return bool(self._owed)

    def touch(self, names: Iterable[str]) -> None:
        """These may have changed."""
        self._touched.update(names)
        self._take_up_refused()

    def _take_up_refused(self) -> None:
        """Once one of those that were refused together changes, all of them are sent again."""
        if self._refused & self._touched:
            self._owed |= self._refused
            self._refused.clear()

    def relist(self) -> None:
        """What a wildcard means may have changed."""
        self._look = self._look or self.wildcard

    def _wanted(self, listed: Collection[str] | None) -> set[str] | None:
        """Every name that it is about; None where that is not known yet."""
        if not self.wildcard:
            return self.names
        return None if listed is None else self.names.union(listed)

    def sent(self, nonce: str) -> None:
        """The answer went out under this nonce."""
        self.awaited = self._nonce = nonce

    def _answer(self, resources: dict[str, Resource], removed: Iterable[str] = ()) -> Answer:
        self._last = set(resources)
        return Answer(resources, tuple(removed))

    def _answered(self, nonce: str, error: str) -> Heard:
        if nonce != self.awaited:
            return "asked"  # that one was answered before
        self.awaited = ""
        if error:
            self._refused |= self._last
            self._take_up_refused()
            return "refused"
        self._refused -= self._last
        return "taken"


class StateOfTheWorld(Subscription):
    def hear(self, names: Collection[str], nonce: str, error: str) -> Heard:
        """A request. Where it answers an older response, the answer to the newer one is still to
        come, and nothing is sent before; but the names hold in any case. A client that leaves a
        name and asks for it again has forgotten it, though both requests crossed a response."""
        heard: Heard = "stale"
        if nonce == self._nonce:
            heard = self._answered(nonce, error) if nonce else "asked"
        asked = set(names)
        wildcard = self.whole and (
            WILDCARD in asked or (not asked and (self.wildcard or not self._begun))
        )
        asked.discard(WILDCARD)
        new = asked - self.names
        self._owed |= new
        self._owed &= asked
        self._refused &= asked
        self._answer_owed |= bool(self.whole and (new or wildcard != self.wildcard))
        self._look |= self._answer_owed or asked != self.names
        self.names, self.wildcard, self._begun = asked, wildcard, True
        self._given = {n: v for n, v in self._given.items() if n in asked or wildcard}
        return heard

    def next(self, find: Find, listed: Collection[str] | None) -> Answer | None:
        """What must be sent now; None where that is nothing, or nothing yet. `listed` is what a
        wildcard means, None where that is not known yet."""
        if self.awaited or not self._begun:
            return None
        return self._all(find, listed) if self.whole else self._some(find)

    def _all(self, find: Find, listed: Collection[str] | None) -> Answer | None:
        if not self._look and not self._touched:
            return None
        wanted = self._wanted(listed)
        found = {} if wanted is None else {name: find(name) for name in sorted(wanted)}
        if wanted is None or "unknown" in found.values():
            return None
        self._look = False
        self._touched.clear()
        there = {name: each for name, each in found.items() if isinstance(each, Resource)}
        versions = {name: each.version for name, each in there.items()}
        if not self._answer_owed and versions == self._given:
            return None
        self._answer_owed = False
        self._owed.clear()
        self._given = versions
        return self._answer(there)

    def _some(self, find: Find) -> Answer | None:
        if not self._touched and not self._owed:
            return None
        send: dict[str, Resource] = {}
        for name in sorted(self._touched | self._owed):
            found = find(name) if name in self.names else "absent"
            if found == "unknown":
                continue
            if isinstance(found, Resource) and (
                name in self._owed or self._given.get(name) != found.version
            ):
                send[name] = found
                self._given[name] = found.version
            self._touched.discard(name)
            self._owed.discard(name)
        return self._answer(send) if send else None


class Incremental(Subscription):
    def hear(
        self,
        subscribe: Collection[str],
        unsubscribe: Collection[str],
        initial: Mapping[str, str],
        nonce: str,
        error: str,
    ) -> Heard:
        """A request. What it says of names holds in any case; `initial` is what the client has of
        a stream before this one."""
        heard: Heard = self._answered(nonce, error) if nonce else "asked"
        asked, left = set(subscribe), set(unsubscribe)
        if not self._begun:
            self._begun = True
            self.wildcard = self.whole and (not asked or WILDCARD in asked)
            self._answer_owed = self._look = self.wildcard
            self._given.update(initial)
            self._touched |= initial.keys() | asked
            asked -= initial.keys()
        elif self.whole and WILDCARD in asked:
            self.wildcard = self._answer_owed = self._look = True
        if WILDCARD in left:
            self.wildcard = False
            self._given = {name: v for name, v in self._given.items() if name in self.names}
        self._touched |= set(subscribe) - {WILDCARD}
        self._owed |= asked - {WILDCARD}
        self.names |= set(subscribe) - {WILDCARD}
        self.names -= left
        self._owed -= left
        self._refused -= left
        for name in left:
            self._given.pop(name, None)
        if self.wildcard:  # what is left by name may be there still: the client waits to hear
            self._owed |= left - {WILDCARD}
        return heard

    def next(self, find: Find, listed: Collection[str] | None) -> Answer | None:
        """What must be sent now; None where that is nothing, or nothing yet. `listed` is what a
        wildcard means, None where that is not known yet."""
        if self.awaited or not self._begun or not self.pending:
            return None
        if (wanted := self._wanted(listed)) is None:
            return None
        look = self._touched | self._owed
        if self._look:
            look |= wanted | self._given.keys()
        found: dict[str, Found] = {
            name: find(name) if name in wanted else "absent" for name in sorted(look)
        }
        if self.wildcard and "unknown" in found.values():
            return None
        self._look = False
        send: dict[str, Resource] = {}
        removed: list[str] = []
        for name, each in found.items():
            if each == "unknown":
                continue
            owed = name in self._owed
            if isinstance(each, Resource):
                if owed or self._given.get(name) != each.version:
                    send[name] = each
                    self._given[name] = each.version
            elif owed or self._given.get(name):
                removed.append(name)
                self._given[name] = ""
                if name not in self.names:
                    del self._given[name]
            self._touched.discard(name)
            self._owed.discard(name)
        if not send and not removed and not self._answer_owed:
            return None
        self._answer_owed = False
        return self._answer(send, removed)
