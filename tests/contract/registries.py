"""Every registry, for one test suite over all of them, and access to their records past Mooring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import mooring
from mooring import Instance
from mooring.hub import Hub
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings import parse
from mooring.store import Delete, Put, everything, key
from tests.backends import BACKENDS, usual

LAYOUTS = ("tree", "plain:/services/", "endpoints:/e/", "hprose")
ON_STORES = [
    *((backend, "tree") for backend in BACKENDS),
    *(("memory", layout) for layout in LAYOUTS[1:]),
    *(("etcd-3.5", layout) for layout in LAYOUTS[1:]),
]
ON_REDIS = [(f"redis-{kind}", "") for kind in ("6.2", "7.0", "valkey-9", "cluster", "sentinel")]
REDIS = usual(
    ["7.0"],
    ["6.2", "valkey-9"],
    reason="tests/contract/registry/test_registry.py runs the scripts on the others",
)


def places(stores: Collection[str], redis: Collection[str] = ()) -> list[Any]:
    """Parameters of a fixture: these stores, every layout in memory, and these kinds of Redis. The
    extended run adds the rest of each kind that is given."""
    chosen = [
        *(place for place in ON_STORES if place[0] in stores and place[1] == "tree"),
        *(place for place in ON_STORES if place[0] == "memory" and place[1] != "tree"),
        *((f"redis-{kind}", "") for kind in redis),
    ]
    reason = "the contracts of stores and of registries show that the other places behave alike"
    return usual(chosen, [*ON_STORES, *(ON_REDIS if redis else [])], reason=reason)


QUICK = parse(
    {
        "registry": {
            "heartbeat": {"heartbeat-interval": "400ms", "metadata-interval": "5s"},
            "metrics": {"enabled-metrics": []},
        }
    }
)
"""Heartbeats are so frequent that a test can wait for what they detect."""


def open_hub(url: str, layout: str) -> Hub:
    return mooring.connect(url, layout=layout, settings=QUICK)


class RawRecords(ABC):
    """Access to the records of a registry past Mooring, like another program has."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    @abstractmethod
    async def delete_all(self) -> None: ...

    @abstractmethod
    async def spoil(self, instance: Instance) -> None:
        """Overwrite the record of an instance."""

    @abstractmethod
    async def is_right(self, instance: Instance) -> bool:
        """Whether the record of an instance is correct again."""

    @abstractmethod
    async def leave_garbage(self, service: str) -> bytes:
        """Put an invalid record beside the instances of a service, and return its key."""

    @abstractmethod
    async def spoil_config(self, service: str) -> None:
        """Overwrite the configuration and the description of a service."""

    @abstractmethod
    async def everything(self) -> object:
        """All stored records, for comparison."""

    @abstractmethod
    async def add_services(self, names: list[str]) -> None: ...


class RawRecordsOnStore(RawRecords):
    async def delete_all(self) -> None:
        await self.hub.store.commit(Delete(everything()))

    async def spoil(self, instance: Instance) -> None:
        await self.hub.store.commit(Put(self._main(instance), b"junk"))

    def _main(self, instance: Instance) -> bytes:
        return next(iter(self.hub._layout.encode(instance)))

    async def is_right(self, instance: Instance) -> bool:
        entry = (await self.hub.store.read(key(self._main(instance)))).first
        return entry is not None and entry.value != b"junk" and entry.lease != 0

    async def leave_garbage(self, service: str) -> bytes:
        folder = next(iter(self.hub._layout.ranges(service))).start
        tree = self.hub._layout.name == "tree"
        bad = folder + (b"10.0.0.9:9/data" if tree else b"10.0.0.9:9")
        await self.hub.store.commit(Put(bad, b"no JSON"), Put(folder + b"x/y/z/w", b""))
        return bad

    async def spoil_config(self, service: str) -> None:
        layout = self.hub._layout
        for name in (layout.config_key(service), layout.info_key(service=service)):
            await self.hub.store.commit(Put(name, b"{oops"))

    async def everything(self) -> object:
        snapshot = await self.hub.store.read(everything())
        return [(entry.key, entry.value, entry.lease) for entry in snapshot.entries]

    async def add_services(self, names: list[str]) -> None:
        layout = self.hub._layout
        made = [layout.encode(Instance(name, "10.0.0.1", 1, id="u")) for name in names]
        puts = [Put(key, value) for one in made for key, value in one.items()]
        for start in range(0, len(puts), 100):
            await self.hub.store.commit(*puts[start : start + 100])


class RawRecordsOnRedis(RawRecords):
    @property
    def registry(self) -> RedisRegistry:
        assert isinstance(self.hub.registry, RedisRegistry)
        return self.hub.registry

    async def call(self, *command: str | bytes | int | float) -> Any:
        return await self.registry.connection.call(*command, what="the test", writes=True)

    async def names(self) -> list[str]:
        return sorted(await self.registry.connection.scan(f"{self.registry.keys.prefix}:*"))

    async def delete_all(self) -> None:
        for name in await self.names():
            await self.call("DEL", name)

    async def spoil(self, instance: Instance) -> None:
        record = self.registry.keys.of(instance.service).instance(instance.id)
        await self.call("DEL", record)
        await self.call("HSET", record, "host", "junk")

    async def is_right(self, instance: Instance) -> bool:
        listed = (await self.registry.instances(instance.service)).instances
        return instance.address in [instance_.address for instance_ in listed]

    async def leave_garbage(self, service: str) -> bytes:
        keys = self.registry.keys.of(service)
        now = (await self.registry.reader.state(keys)).now
        await self.call("ZADD", keys.heartbeats, now, "bad")
        await self.call("HSET", keys.instance("bad"), "host", "10.0.0.9", "port", "many")
        await self.call("ZADD", keys.heartbeats, now, "without-a-record")
        return keys.instance("bad").encode()

    async def spoil_config(self, service: str) -> None:
        keys = self.registry.keys
        await self.call("HSET", keys.of(service).config, "", "{oops")
        await self.call("HSET", keys.info, service, "{oops")

    async def everything(self) -> object:
        values = {}
        for name in await self.names():
            kind = await self.call("TYPE", name)
            read = {b"hash": "HGETALL", b"set": "SMEMBERS", b"zset": "ZCARD"}.get(kind, "GET")
            values[name] = await self.call(read, name)
        return values

    async def add_services(self, names: list[str]) -> None:
        for name in names:
            await self.call("SADD", self.registry.keys.services, name)


def raw_records_of(hub: Hub) -> RawRecords:
    return (
        RawRecordsOnRedis(hub)
        if isinstance(hub.registry, RedisRegistry)
        else RawRecordsOnStore(hub)
    )
