"""The balancing under the transports: views of the services asked for, and calls to instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict
from weakref import WeakValueDictionary

import httpx

from mooring.discovery.balance import Node
from mooring.discovery.last_known_good import Empty
from mooring.discovery.resilience import Resilience
from mooring.discovery.view import Pick, View
from mooring.errors import MooringError, NoInstance, Unavailable
from mooring.httpx.retry import Tries, blames
from mooring.hub import Hub
from mooring.model import Instance
from mooring.names import nearest

_UNKNOWN_FOR = 1.0  # seconds until the registry is asked again for a service that it did not know


class Discovery(TypedDict, total=False):
    """How instances are chosen: as for `hub.discover`."""

    policy: str
    version: str
    tags: Mapping[str, str]
    zone: str
    zone_only: bool
    where: Callable[[Instance], bool]
    resilience: Resilience
    empty: Empty
    hold: float
    wait: float


class Call(Pick):
    """A pick that is ended when the response is closed, and timed up to the response's head."""

    __slots__ = ("_answered", "_ended", "instance", "key", "tried", "view")

    def __init__(
        self, view: View, node: Node, key: str | bytes | None, tried: tuple[str, ...] = ()
    ) -> None:
        super().__init__(view, key, tried)
        self.view, self.key = view, key
        self.instance: Instance = node.item.instance
        self.tried = (*tried, node.id)
        self._node, self._began = node, time.monotonic()
        self._answered: float | None = None
        self._ended = False
        view.rotation.picker.started(node)

    def answered(self, response: httpx.Response) -> None:
        """The head of the response is there."""
        self._answered = time.monotonic()
        response.extensions["mooring_instance"] = self.instance

    def end(self, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._answered is not None:
            self._began += time.monotonic() - self._answered  # what came after does not count
        self.__exit__(None if error is None else type(error), error, None)


class Balancer:
    """The views of the services that were asked for. Lives on the hub's loop."""

    def __init__(self, hub: Hub, services: Iterable[str], discovery: Discovery) -> None:
        self._hub, self._discovery = hub, discovery
        self._spelled = {name.casefold(): name for name in services}
        self._views: dict[str, View] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Only while somebody opens: anything may be asked for as a name."""
        self._unknown: dict[str, tuple[float, str]] = {}
        """Until when a name is taken for unknown, and why it is."""

    async def first(self, tries: Tries) -> Call:
        """The first try of a request. Raises `httpx.ConnectError`."""
        name = tries.service
        try:
            view = self._views.get(name)
            if view is None:
                async with self._opening.setdefault(name, asyncio.Lock()):
                    view = self._views.get(name) or await self._open(name)
            view.retries.request(time.monotonic())
            return Call(view, view.rotation.pick(tries.key), tries.key)
        except MooringError as error:
            # A caller that retries at once must not starve the loop that would add an instance.
            await asyncio.sleep(0)
            raise httpx.ConnectError(str(error), request=tries.request) from error

    async def _open(self, name: str) -> View:
        try:
            service = await self._resolve(name)
        except Unavailable:
            # A view may have a copy of its list on disk, and says what is wrong if not.
            view = await self._enter(name)
            if not view.instances:  # the registry is back: it can tell what this name stands for
                await view.aclose()
                view = await self._enter(await self._resolve(name))
        else:
            view = await self._enter(service)
        self._views[name] = view
        return view

    async def _enter(self, service: str) -> View:
        return await self._hub.discover(service, blame=blames, **self._discovery).__aenter__()

    async def _resolve(self, name: str) -> str:
        """The service that a host stands for. Raises `NoInstance` where that cannot be told, and
        `Unavailable` where it cannot be told now."""
        folded = name.casefold()
        if folded in self._spelled:
            return self._spelled[folded]
        now = time.monotonic()
        self._unknown = {each: told for each, told in self._unknown.items() if told[0] > now}
        if name in self._unknown:
            raise NoInstance(self._unknown[name][1])
        known = await self._hub.registry.names()
        alike = [name] if name in known else [each for each in known if each.casefold() == folded]
        if len(alike) == 1:
            return alike[0]
        if alike:
            told = f"{name} may be {' or '.join(alike)}: name the one that is meant in `services`"
        else:
            told = f"{name}: no such service is known{nearest(name, known) if known else ''}"
        self._unknown[name] = (time.monotonic() + _UNKNOWN_FOR, told)
        raise NoInstance(told)

    def another(self, call: Call, tries: Tries, failure: BaseException | None) -> Call | None:
        """End a failed call and begin one to another instance; None, and nothing ends, where it did
        not fail, nobody else is there, or retries are used up."""
        if not tries.may_go_on(failure):
            return None
        view = call.view
        try:
            node = view.rotation.pick(call.key, call.tried)
        except NoInstance:
            return None
        if node.id in call.tried or not view.retries.try_retry(time.monotonic()):
            return None
        call.end(failure)
        return Call(view, node, call.key, call.tried)

    async def aclose(self) -> None:
        views, self._views = list(self._views.values()), {}
        for view in views:
            await view.aclose()
