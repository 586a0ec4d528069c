"""The embedded store, in memory or in a file, and a real etcd give the same results for any
sequence of operations.

Both start at the same revision, so that results are compared completely: entries, revisions,
errors.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from mooring.backends import open_store
from mooring.errors import Conflict, InvalidRequest, StoreError
from mooring.store import (
    Batch,
    Check,
    Delete,
    Entry,
    Put,
    Query,
    Range,
    Store,
    Watch,
    between,
    everything,
    key,
    prefix,
)
from mooring.store.embedded.engine import Engine
from mooring.store.embedded.store import EmbeddedStore, EngineRunner, MemoryRunner
from mooring.store.namespace import Namespaced
from mooring.testing.etcd import EtcdServer
from tests.backends import usual
from tests.contract.side_by_side import host_at
from tests.waiting import PATIENCE, eventually

EXPIRIES = 1  # each waits for real seconds, so there are only a few

names = st.sampled_from([b"a", b"a/", b"a/b", b"a/c", b"b", b"b/\xff", b"c"])
values = st.sampled_from([b"", b"1", b"2", b"x" * 100])
ranges = st.one_of(
    names.map(key),
    names.map(prefix),
    st.just(everything()),
    st.tuples(names, names).filter(lambda p: p[0] < p[1]).map(lambda p: between(*p)),
)
queries = st.builds(
    Query,
    ranges,
    keys_only=st.booleans(),
    limit=st.integers(0, 3),
    order=st.sampled_from(["key", "created"]),
    created_before=st.none() | st.integers(0, 12),
)
steps = st.integers(0, 12)  # revisions, counted from the start of the example


class Machine(RuleBasedStateMachine):
    server: EtcdServer
    folder: Path | None
    """Where ours is kept; None: in memory."""
    runner: asyncio.Runner
    examples = itertools.count()
    expiries = 0
    patience = PATIENCE
    """Seconds to wait for a watch. Once one was silent, the test has failed: a shorter time lets
    Hypothesis find a small example before the test is ended."""

    @initialize()
    def open(self) -> None:
        self.now = 0.0
        self.leases: list[tuple[int, int]] = []
        self.standing: list[tuple[Range, tuple[Watch, Watch]]] = []
        self.runner.run(self._open())

    async def _open(self) -> None:
        etcd = open_store(self.server.url)
        number = next(Machine.examples)
        self.etcd: Store = Namespaced(etcd, b"/%d/" % number)
        self.start = (await self.etcd.read(key(b"none"))).revision
        host: EngineRunner
        if self.folder is None:
            host = MemoryRunner(Engine(revision=self.start), clock=lambda: self.now)
        else:
            host = host_at(self.start, self.folder / str(number))
        self.ours: Store = Namespaced(EmbeddedStore(host, url="ours://"), b"/n/")
        await self._stand(everything())  # so that each change is watched at least once

    def teardown(self) -> None:
        if hasattr(self, "ours"):
            self.runner.run(self._close())

    async def _close(self) -> None:
        await self.check_watches()
        for _, lease in self.leases:
            await outcome(self.etcd.revoke(lease))
        await self.ours.aclose()
        await self.etcd.aclose()

    def both(self, call: Callable[[Store, int], Awaitable[Any]]) -> Any:
        """The same call on both; 0 and 1 distinguish the stores. The results must be equal."""

        async def ask() -> tuple[Any, Any]:
            return await outcome(call(self.ours, 0)), await outcome(call(self.etcd, 1))

        ours, theirs = self.runner.run(ask())
        assert ours == self.in_our_words(theirs)
        return ours

    def in_our_words(self, answer: Any) -> Any:
        """A result of etcd with the lease ids of the embedded store instead of its own."""
        ids = {theirs: ours for ours, theirs in self.leases}

        def renamed(thing: Any) -> Any:
            if isinstance(thing, Entry):
                return msgspec.structs.replace(thing, lease=ids.get(thing.lease, thing.lease))
            if isinstance(thing, msgspec.Struct):
                fields = {f: renamed(getattr(thing, f)) for f in thing.__struct_fields__}
                return type(thing)(**fields)
            if isinstance(thing, tuple):
                return tuple(map(renamed, thing))
            return thing

        return renamed(answer)

    def lease(self, number: int | None, side: int) -> int:
        """The id of a lease on one side, or an unknown id if there is no lease."""
        if number is None:
            return 0
        return self.leases[number % len(self.leases)][side] if self.leases else 77

    @rule(name=names, value=values, lease=st.none() | st.integers(0, 3))
    def put(self, name: bytes, value: bytes, lease: int | None) -> None:
        self.both(lambda store, side: store.commit(Put(name, value, self.lease(lease, side))))

    @rule(range=ranges)
    def delete(self, range: Range) -> None:
        self.both(lambda store, _: store.commit(Delete(range)))

    @rule(
        puts=st.dictionaries(names, st.tuples(values, st.none() | st.integers(0, 3)), max_size=3),
        deletes=st.lists(ranges, max_size=2),
        checks=st.lists(
            st.one_of(
                st.builds(Check, names, st.just("created"), steps, st.booleans()),
                st.builds(Check, names, st.just("modified"), steps, st.booleans()),
                st.builds(Check, names, st.just("value"), values, st.booleans()),
            ),
            max_size=2,
        ),
        reads=st.lists(queries, max_size=2),
        lease_check=st.none() | st.tuples(names, st.none() | st.integers(0, 3), st.booleans()),
    )
    def transaction(
        self,
        puts: dict[bytes, tuple[bytes, int | None]],
        deletes: list[Range],
        checks: list[Check],
        reads: list[Query],
        lease_check: tuple[bytes, int | None, bool] | None,
    ) -> None:
        checks = [self.placed_check(check) for check in checks]
        reads = [self.placed_query(query) for query in reads]

        def call(store: Store, side: int) -> Awaitable[Any]:
            require = list(checks)
            if lease_check is not None:
                name, lease, equal = lease_check
                require.append(Check(name, "lease", self.lease(lease, side), equal))
            return store.commit(
                *(Put(n, value, self.lease(lease, side)) for n, (value, lease) in puts.items()),
                *map(Delete, deletes),
                require=require,
                read=reads,
            )

        self.both(call)

    def placed_check(self, check: Check) -> Check:
        if check.field == "value" or not check.expected:
            return check
        assert isinstance(check.expected, int)
        return Check(check.key, check.field, self.start + check.expected, check.equal)

    def placed_query(self, query: Query) -> Query:
        before = query.created_before
        placed = None if before is None else self.start + before
        return msgspec.structs.replace(query, created_before=placed)

    @rule(query=queries, at=st.none() | steps)
    def read(self, query: Query, at: int | None) -> None:
        query = self.placed_query(query)
        self.both(
            lambda store, _: store.read(
                query.range,
                keys_only=query.keys_only,
                limit=query.limit,
                order=query.order,
                created_before=query.created_before,
                at=None if at is None else self.start + at,
            )
        )

    @rule()
    def grant(self) -> None:
        async def ask() -> None:
            ours, theirs = await self.ours.grant(600), await self.etcd.grant(600)
            assert ours.ttl == theirs.ttl
            self.leases.append((ours.id, theirs.id))

        self.runner.run(ask())

    @rule(number=st.integers(0, 3))
    def renew(self, number: int) -> None:
        self.both(lambda store, side: store.renew(self.lease(number, side)))

    @rule(number=st.integers(0, 3))
    def revoke(self, number: int) -> None:
        self.both(lambda store, side: store.revoke(self.lease(number, side)))

    @rule(attached=st.lists(names, min_size=1, max_size=3, unique=True))
    def expire(self, attached: list[bytes]) -> None:
        if Machine.expiries == EXPIRIES:
            return
        Machine.expiries += 1

        async def ask() -> None:
            pair = (await self.ours.grant(2)).id, (await self.etcd.grant(2)).id
            self.leases.append(pair)
            for store, lease in zip((self.ours, self.etcd), pair, strict=True):
                await store.commit(*(Put(name, b"short", lease) for name in attached))

            async def gone(store: Store) -> bool:
                return (await store.read(key(attached[0]))).first is None

            self.now += 5
            for store in (self.ours, self.etcd):
                await eventually(partial(gone, store))

        self.runner.run(ask())

    @rule(at=st.integers(1, 12))
    def compact(self, at: int) -> None:
        self.both(lambda store, _: store.compact(self.start + at))

    @rule(range=ranges, after=steps)
    def watch_from(self, range: Range, after: int) -> None:
        """Compare everything after a revision, up to a sentinel."""
        after += self.start

        async def batches(store: Store, _: int) -> Any:
            async with AsyncExitStack() as stack:
                entering = stack.enter_async_context(store.watch(range, after=after))
                entered = await outcome(entering)
                # The stores may notice at different moments that the watch cannot resume. Write in
                # any case, so that they stay at the same revision.
                sentinel = await write_sentinel(store, range, after)
                return (
                    await self.up_to(sentinel, entered) if isinstance(entered, Watch) else entered
                )

        self.both(batches)

    @precondition(lambda self: len(self.standing) < 5)
    @rule(range=ranges)
    def watch_from_now(self, range: Range) -> None:
        self.runner.run(self._stand(range))

    async def _stand(self, range: Range) -> None:
        pair = self.ours.watch(range), self.etcd.watch(range)
        for watch in pair:
            await watch.__aenter__()
        self.standing.append((range, pair))

    @rule()
    def look_at_watches(self) -> None:
        self.runner.run(self.check_watches())

    async def check_watches(self) -> None:
        """Compare what both watches have delivered since the last check, up to a sentinel."""
        for range, pair in self.standing:
            sentinels = [await write_sentinel(store, range) for store in (self.ours, self.etcd)]
            ours, theirs = [
                await self.up_to(sentinel, watch)
                for sentinel, watch in zip(sentinels, pair, strict=True)
            ]
            assert ours == self.in_our_words(theirs)

    async def up_to(self, revision: int, watch: Watch) -> tuple[Batch, ...]:
        """The batches of a watch, up to that of a revision that it must deliver."""
        batches: list[Batch] = []
        try:
            async with asyncio.timeout(Machine.patience):
                while not batches or batches[-1].revision < revision:
                    batches.append(await anext(watch))
        except TimeoutError:
            Machine.patience = 0.2
            self.standing.clear()  # there is no need to wait for them, too
            raise AssertionError(f"no batch of revision {revision} after {batches}") from None
        return tuple(batches)


async def write_sentinel(store: Store, range: Range, after: int = 0) -> int:
    """Change a key of a range in a revision later than `after`, and return that revision."""
    name = b"a/b" if b"a/b" in range else range.start
    revision = 0
    while revision <= after:
        revision = (await store.commit(Put(name, b"sentinel"))).revision
    return revision


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Conflict as error:
        return "Conflict", error.revision, error.reads
    except (InvalidRequest, StoreError) as error:
        return type(error).__name__


@pytest.fixture(
    scope="module",
    params=usual(
        ["memory-3.5", "file-3.5"],
        ["memory-3.4"],
        reason="ours is compared with etcd 3.5; tests/contract/test_store.py runs on 3.4 too",
    ),
)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[type[Machine]]:
    kind, series = request.param.split("-")
    flags = ["--unsafe-no-fsync"] if series == "3.5" else []
    with (
        EtcdServer(tmp_path_factory.mktemp("etcd"), series=series, flags=flags) as server,
        asyncio.Runner() as runner,
    ):
        server.start()
        Machine.server, Machine.runner = server, runner
        Machine.expiries, Machine.patience = 0, PATIENCE
        Machine.folder = tmp_path_factory.mktemp("ours") if kind == "file" else None
        yield Machine


def compare(machine: type[Machine], examples: int, *, derandomize: bool = False) -> None:
    checks = list(HealthCheck)
    run(
        machine,
        settings=settings(
            max_examples=examples,
            derandomize=derandomize,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=checks,
        ),
    )


def test_the_embedded_store_and_etcd_give_equal_results(machine: type[Machine]):
    compare(machine, 10, derandomize=True)


@pytest.mark.extended("the same as before, at random and more often")
@pytest.mark.timeout(600)
def test_the_embedded_store_and_etcd_give_equal_results_at_random(machine: type[Machine]):
    compare(machine, 60)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_the_embedded_store_and_etcd_give_equal_results_in_a_long_run(
    machine: type[Machine], soak_seconds: float
):
    until = time.monotonic() + soak_seconds
    while time.monotonic() < until:
        compare(machine, 100)
