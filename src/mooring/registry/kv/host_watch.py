"""The keys of a service's instances on one host, followed once for all of them in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from mooring.mirror import Mirror, RangeFeed, Update
from mooring.registry.kv.layouts.layout import Layout
from mooring.store.contract import Entry, Range, Store


class WatchedInstance(Protocol):
    def hear(self, *, anew: bool) -> None:
        """Something happened to this one's keys. `anew`: the store may be another, whose revisions
        mean something else."""

    def configured(self) -> None:
        """The operator's word on the service changed."""


class HostWatch:
    """Neighbours come with `join` and go with `leave`; each hears of its own keys alone, and of the
    service's `config`. `returned`: called when the store is there again."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        range: Range,
        config: Mirror[bytes, Entry] | None,
        returned: Callable[[], None],
    ) -> None:
        self.range = range
        self.mirror: Mirror[bytes, Entry] = Mirror(
            RangeFeed(store, range), wait=False, quiet=True, returned=returned
        )
        self.config = config
        self._layout = layout
        self._instances: dict[str, WatchedInstance] = {}
        self.mirror.subscribe(self._hear)
        self._end_config = config.subscribe(self._hear_config) if config else lambda: None

    def start(self) -> None:
        """Follow, where it does not yet."""
        self.mirror.start()
        if self.config is not None:
            self.config.start()

    def join(self, id: str, instance: WatchedInstance) -> None:
        self._instances[id] = instance

    def leave(self, id: str) -> bool:
        """Whether it was the last: then nobody may join any more, and it is to be closed."""
        self._instances.pop(id, None)
        return not self._instances

    async def aclose(self) -> None:
        self._end_config()
        await self.mirror.aclose()

    def _hear_config(self, _: Update[bytes, Entry]) -> None:
        for instance in tuple(self._instances.values()):
            instance.configured()

    def _hear(self, update: Update[bytes, Entry]) -> None:
        if update.resync:
            touched: Iterable[str] = tuple(self._instances)
        else:
            places = map(self._layout.locate, (change.key for change in update.changes))
            touched = {place.id for place in places if place is not None}
        anew = update.resync and self.mirror.resyncs > 0
        for id in touched:
            if (instance := self._instances.get(id)) is not None:
                instance.hear(anew=anew)
