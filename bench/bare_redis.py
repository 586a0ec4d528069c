"""A fresh Redis, a registry on it, the driver's own client to it, and its statistics."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis

from bench.population import instance
from bench.processes import output
from mooring.messages import Message
from mooring.model import Instance
from mooring.registry.contract import InstanceRecord
from mooring.registry.redis.connection import Argument, Connection
from mooring.registry.redis.layout import RedisKeys
from mooring.registry.redis.pipeline import Script
from mooring.registry.redis.registry import RedisRegistry
from mooring.settings import RegistrySettings
from mooring.settings.connections import RedisConnectionSettings
from mooring.testing.redis import RedisServer, find_redis, launch

SERIES = "7.0"
_TOGETHER = 500
_MOMENT = 100  # µs: logging the commands of a script would slow it down


class Member(NamedTuple):
    """A registered instance."""

    instance: Instance
    record: InstanceRecord


@contextmanager
def fresh_redis() -> Iterator[RedisServer]:
    """An empty server without persistence."""
    with (
        tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder,
        RedisServer(Path(folder), series=SERIES) as server,
    ):
        server.start()
        yield server


@asynccontextmanager
async def registry_at(address: str, namespace: str = "") -> AsyncIterator[RedisRegistry]:
    connection = Connection(RedisConnectionSettings((address,)), url=f"redis://{address}")
    registry = RedisRegistry(connection, RedisKeys(namespace=namespace), RegistrySettings())
    try:
        yield registry
    finally:
        await registry.aclose()


@asynccontextmanager
async def driver(server: RedisServer, **options: Any) -> AsyncIterator[Redis]:
    """redis-py's client with default settings and our protocol version."""
    client = Redis(host="127.0.0.1", port=server.port, protocol=2, **options)
    try:
        yield client
    finally:
        await client.aclose()


async def register(registry: RedisRegistry, numbers: Iterable[int]) -> list[Member]:
    """Registers these instances in batches, without sending heartbeats."""
    members = []
    for number in numbers:
        ready, _ = registry.prepare(instance(number))
        members.append(Member(ready, registry.instance_record(ready)))
    await put(members)
    return members


async def put(members: Sequence[Member]) -> None:
    for first in range(0, len(members), _TOGETHER):
        some = members[first : first + _TOGETHER]
        await asyncio.gather(*(member.record.put(member.instance, fresh=True) for member in some))


def number_in(server: RedisServer, section: str, name: str) -> int:
    """A number from the output of INFO."""
    lines = cast("str", server.command("INFO", section)).splitlines()
    return next(int(line.partition(":")[2]) for line in lines if line.startswith(f"{name}:"))


@contextmanager
def slow_log(server: RedisServer) -> Iterator[list[tuple[float, str]]]:
    """Slow commands that ran inside the block: milliseconds in Redis and the command, longest
    first."""
    for name, value in (("slowlog-max-len", 100_000), ("slowlog-log-slower-than", _MOMENT)):
        server.command("CONFIG", "SET", name, value)
    server.command("SLOWLOG", "RESET")
    ran: list[tuple[float, str]] = []
    yield ran
    server.command("CONFIG", "SET", "slowlog-log-slower-than", -1)
    entries = cast("list[list[Any]]", server.command("SLOWLOG", "GET", -1, within=60.0))
    server.command("SLOWLOG", "RESET")
    mine = ("CONFIG", "SLOWLOG")
    ran += [(took / 1000, words[0]) for _, _, took, words, *_ in entries if words[0] not in mine]
    ran.sort(reverse=True)


class Sent(Connection):
    """Records the command instead of sending it, so that other clients can send the same."""

    def __init__(self) -> None:
        self.command: tuple[Argument, ...] = ()

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        *,
        what: str | Message,
    ) -> Any:
        self.command = (script.digest, len(keys), *keys, *arguments)
        return []


async def benchmark(
    server: RedisServer, command: Sequence[Argument], *, together: int, requests: int
) -> float:
    """Requests per second of `redis-benchmark`, which repeats one command on one connection with
    `together` requests in flight."""
    program = find_redis(SERIES).with_name("redis-benchmark")
    options = f"-p {server.port} --csv -n {requests} -c 1 -P {together}".split()
    report = await output(*launch(program), *options, *map(str, command), within=60.0)
    # The first column is the command, with its own quotes.
    return float(report.strip().splitlines()[-1].rsplit('","', 7)[1])
