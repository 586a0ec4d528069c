"""The embedded engine over etcd's API, in memory and in a file, beside a real etcd: the same
requests, the same responses.

Before each test etcd is emptied and the engine started at etcd's revision, so that responses are
compared completely. Only the fields that identify the cluster are ignored.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from mooring.etcd_server import watch
from mooring.etcd_server.server import EtcdAPIServer
from mooring.store.etcd import proto
from mooring.testing.etcd import EtcdServer
from tests.contract.side_by_side import (
    Pair,
    Stream,
    host_at,
    merged,
    methods,
    op_delete,
    op_get,
    op_put,
    op_txn,
    plain,
    txn,
    version,
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd of this module, whose revision no other test raises."""
    with EtcdServer(tmp_path_factory.mktemp("etcd"), flags=["--unsafe-no-fsync"]) as server:
        server.start()
        yield server


IN_A_FILE = pytest.param(
    "file", marks=pytest.mark.extended("test_store.py asks `mooring serve` for what is in a file")
)


@pytest.fixture(params=["memory", IN_A_FILE])
async def pair(
    real: EtcdServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Pair]:
    monkeypatch.setattr(watch, "PROGRESS_INTERVAL", 0.3)
    async with methods(real.address) as etcd:
        await etcd.put(proto.PutRequest(key=b"x"))
        emptied = await etcd.delete_range(proto.DeleteRangeRequest(key=b"\0", range_end=b"\0"))
        host = host_at(emptied.header.revision, tmp_path if request.param == "file" else None)
        async with (
            EtcdAPIServer(host, bind="127.0.0.1:0") as server,
            methods(server.address) as wire,
        ):
            yield Pair(etcd, wire, host)
        host.release()


ALL = (b"\0", b"\0")


async def fill(pair: Pair) -> int:
    """Keys whose orders by name, version, creation, change and value all differ."""
    for key, value in ((b"b", b"3"), (b"a", b"2"), (b"d", b"9"), (b"c", b"1"), (b"a", b"4")):
        await pair.put(key, value)
    await pair.put(b"b", b"0")
    answer = await pair.put(b"b", b"7")
    return int(answer.header.revision)


@pytest.fixture
async def fresh(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Two servers that were never written to, nor compacted."""
    with EtcdServer(tmp_path_factory.mktemp("etcd"), flags=["--unsafe-no-fsync"]) as server:
        server.start()
        host = host_at(1, tmp_path)
        async with (
            methods(server.address) as etcd,
            EtcdAPIServer(host, bind="127.0.0.1:0") as serving,
            methods(serving.address) as wire,
        ):
            yield Pair(etcd, wire, host)
        host.release()


async def test_a_history_that_was_never_compacted_starts_at_its_beginning(fresh: Pair):
    for operation in (op_get(b"a", revision=-1), op_get(b"a", revision=-2)):
        await fresh.txn(success=[operation])
        await fresh.txn(success=[op_put(b"b"), operation])
    for revision in (-1, 0, 0, 1, 1, 0, 2, 2, 1):
        await fresh.ask("compact", proto.CompactionRequest(revision=revision))
    await fresh.txn(success=[op_get(b"a", revision=-1)])


class TestRange:
    async def test_every_sort_with_and_without_a_limit(self, pair: Pair):
        await fill(pair)
        for order, target, limit in itertools.product(range(3), range(5), (0, 1, 3, 4, 9, -1)):
            sort: dict[str, Any] = {"sort_order": order, "sort_target": target, "limit": limit}
            await pair.get(*ALL, **sort)
            await pair.get(*ALL, **sort, max_mod_revision=10**9)

    async def test_ranges_of_every_shape(self, pair: Pair):
        await fill(pair)
        for key, end in (
            (b"a", b""),
            (b"none", b""),
            (b"b", b"d"),
            (b"b", b"\0"),
            (b"\0", b"\0"),
            (b"c", b"b"),
            (b"c", b"c"),
            (b"\xff", b"\0"),
        ):
            await pair.get(key, end)
            await pair.get(key, end, serializable=True)

    async def test_the_count_ignores_limit_and_filters(self, pair: Pair):
        newest = await fill(pair)
        answer = await pair.get(*ALL, limit=2)
        assert (len(answer.kvs), answer.count, answer.more) == (2, 4, True)
        answer = await pair.get(*ALL, min_mod_revision=newest)
        assert (len(answer.kvs), answer.count, answer.more) == (1, 4, False)
        await pair.get(*ALL, count_only=True)
        await pair.get(*ALL, count_only=True, limit=1)
        await pair.get(*ALL, keys_only=True)

    async def test_filters_by_revision(self, pair: Pair):
        newest = await fill(pair)
        for name in (
            "min_mod_revision",
            "max_mod_revision",
            "min_create_revision",
            "max_create_revision",
        ):
            for back in range(8):
                bound: dict[str, Any] = {name: newest - back}
                await pair.get(*ALL, limit=2, **bound)

    async def test_reading_the_past(self, pair: Pair):
        newest = await fill(pair)
        for back in range(7):
            await pair.get(*ALL, revision=newest - back)
            await pair.get(b"b", revision=newest - back, count_only=True)
        await pair.get(*ALL, revision=-1)
        code, text = await pair.get(*ALL, revision=newest + 1)
        assert code is grpc.StatusCode.OUT_OF_RANGE
        assert text == "etcdserver: mvcc: required revision is a future revision"
        await pair.ask("compact", proto.CompactionRequest(revision=newest - 2))
        code, text = await pair.get(*ALL, revision=newest - 3)
        assert text == "etcdserver: mvcc: required revision has been compacted"
        await pair.get(*ALL, revision=newest - 2)
        for revision in (newest - 2, newest - 3, newest + 1):
            await pair.ask("compact", proto.CompactionRequest(revision=revision))

    async def test_an_empty_key_is_refused(self, pair: Pair):
        code, text = await pair.get(b"")
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: key is not provided",
        )
        await pair.get(b"", b"z")
        await pair.put(b"", b"x")
        await pair.delete(b"")
        await pair.txn(success=[op_put(b"")])
        await pair.txn(compare=[version(b"", proto.EQUAL, 0)])


class TestWriting:
    async def test_previous_values_are_returned(self, pair: Pair):
        await pair.put(b"a", b"1", prev_kv=True)
        answer = await pair.put(b"a", b"2", prev_kv=True)
        assert answer.prev_kv.value == b"1"
        await pair.put(b"b", b"1")
        answer = await pair.delete(b"a", b"c", prev_kv=True)
        assert (answer.deleted, len(answer.prev_kvs)) == (2, 2)
        await pair.delete(b"a", b"c", prev_kv=True)
        await pair.delete(b"z", b"a")
        await pair.delete(*ALL)

    async def test_ignored_values_and_leases(self, pair: Pair):
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=77))
        await pair.put(b"a", b"1", lease=77)
        await pair.put(b"a", b"2", ignore_lease=True)
        await pair.put(b"a", ignore_value=True, lease=77)
        await pair.put(b"a", ignore_value=True, prev_kv=True)
        await pair.get(b"a")
        assert (await pair.put(b"a", b"x", ignore_value=True))[1] == "etcdserver: value is provided"
        refused = await pair.put(b"a", lease=77, ignore_lease=True)
        assert refused[1] == "etcdserver: lease is provided"
        assert (await pair.put(b"no", ignore_value=True))[1] == "etcdserver: key not found"
        await pair.put(b"no", b"x", ignore_lease=True)
        await pair.put(b"no", ignore_value=True, lease=12345)
        await pair.txn(success=[op_put(b"no", ignore_value=True, lease=12345)])
        await pair.txn(success=[op_put(b"a", ignore_value=True), op_get(b"a")])
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=77))

    async def test_an_unknown_lease_is_refused(self, pair: Pair):
        code, text = await pair.put(b"a", lease=12345)
        assert (code, text) == (
            grpc.StatusCode.NOT_FOUND,
            "etcdserver: requested lease not found",
        )
        await pair.txn(success=[op_put(b"b"), op_put(b"a", lease=12345)])
        assert (await pair.get(*ALL)).count == 0

    async def test_requests_over_the_limit_are_refused(self, pair: Pair):
        code, text = await pair.put(b"a", b"x" * 1_600_000)
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: request is too large",
        )
        code, text = await pair.put(b"a", b"x" * 3_000_000)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text.startswith("grpc: received message larger than max (3000")
        await pair.txn(success=[op_put(b"%d" % n, b"x" * 400_000) for n in range(4)])
        # The largest request that fits, and the first that does not.
        assert (await pair.put(b"a", b"x" * (1536 * 1024 - 30))).header.revision
        await pair.put(b"a", b"x" * (1536 * 1024))
        await pair.get(b"a", count_only=True)


class TestTransactions:
    @pytest.mark.parametrize("result", range(4))
    async def test_every_compare(self, pair: Pair, result: int):
        newest = await fill(pair)
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=99))
        await pair.put(b"l", b"", lease=99)
        both = [op_get(b"a", b"c")], [op_get(b"d")]
        for key, end in ((b"a", b""), (b"l", b""), (b"none", b""), (b"a", b"d"), (b"b", b"\0")):
            where = {"key": key, "range_end": end, "result": result}
            for number in (0, 1, 2, 3, 98, 99, newest - 3, newest):
                for target, field in (
                    (proto.VERSION, "version"),
                    (proto.CREATE, "create_revision"),
                    (proto.MOD, "mod_revision"),
                    (proto.LEASE, "lease"),
                ):
                    compare = proto.Compare(target=target, **where, **{field: number})
                    await pair.txn([compare], *both)
            for value in (b"", b"1", b"4", b"7"):
                await pair.txn([proto.Compare(target=proto.VALUE, value=value, **where)], *both)
            # The field of another target is set: the field of the target itself counts as empty.
            await pair.txn([proto.Compare(target=proto.MOD, version=2, **where)], *both)
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=99))

    async def test_nested_transactions_compare_with_the_state_before_all_writes(self, pair: Pair):
        absent = version(b"a", proto.EQUAL, 0)
        answer = await pair.txn(
            [absent],
            [
                op_put(b"a", b"1"),
                op_txn(
                    [absent],
                    [op_get(b"a"), op_put(b"b"), op_txn([], [op_get(*ALL)])],
                    [op_put(b"c")],
                ),
                op_get(*ALL),
            ],
        )
        assert answer.responses[1].response_txn.succeeded
        again = await pair.txn(
            [absent], [op_put(b"x")], [op_txn([absent], [op_put(b"y")], [op_delete(*ALL)])]
        )
        assert not again.succeeded
        assert (await pair.get(*ALL)).count == 0

    async def test_reads_see_the_writes_before_them(self, pair: Pair):
        await pair.put(b"a", b"0")
        before = (await pair.put(b"b", b"0")).header.revision
        answer = await pair.txn(
            success=[
                op_get(b"a"),
                op_delete(b"none"),
                op_get(b"a", revision=before),
                op_put(b"a", b"1", prev_kv=True),
                op_get(b"a", sort_order=2, limit=1),
                op_delete(b"b", prev_kv=True),
                op_delete(b"b", prev_kv=True),
                op_get(*ALL, count_only=True),
                op_get(*ALL, revision=before, keys_only=True),
            ]
        )
        assert answer.header.revision == before + 1
        await pair.txn(success=[op_get(b"a"), op_get(b"b")])
        await pair.txn(success=[op_delete(b"none"), op_get(b"a")])
        await pair.txn()

    async def test_an_invalid_revision_in_any_taken_branch_stops_everything(self, pair: Pair):
        newest = (await pair.put(b"a", b"0")).header.revision
        operation = op_get(b"a", revision=newest + 5)
        await pair.txn(success=[op_put(b"x"), operation])
        await pair.txn(success=[op_put(b"x"), op_txn([], [operation])])
        await pair.txn(success=[operation])
        await pair.ask("compact", proto.CompactionRequest(revision=newest))
        for revision in (newest - 1, -1):
            await pair.txn(success=[op_put(b"x"), op_get(b"a", revision=revision)])
            await pair.txn(success=[op_get(b"a", revision=revision)])
        await pair.txn(success=[op_get(b"a")], failure=[op_get(b"a", revision=newest + 5)])
        assert (await pair.get(b"x")).count == 0

    async def test_a_transaction_writes_a_key_at_most_once(self, pair: Pair):
        code, text = await pair.txn(success=[op_put(b"a"), op_put(b"a")])
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: duplicate key given in txn request",
        )
        for success in (
            [op_put(b"a"), op_delete(b"a")],
            [op_delete(b"a", b"c"), op_put(b"b")],
            [op_delete(b"a", b"c"), op_put(b"c")],
            [op_delete(b"a", b"c"), op_delete(b"b", b"d")],
            [op_delete(b"a", b"\0"), op_put(b"b")],
            [op_delete(b"\0", b"\0"), op_put(b"b")],
            [op_put(b"a"), op_txn([], [op_put(b"a")])],
            [op_txn([], [op_put(b"a")]), op_txn([], [], [op_put(b"a")])],
            [op_txn([], [op_put(b"a")], [op_put(b"a")])],
            [op_txn([], [op_put(b"a")]), op_delete(b"a")],
            [op_txn([], [op_delete(b"a")]), op_put(b"a")],
            [op_txn([], [op_delete(b"a")]), op_txn([], [op_put(b"a")])],
            [op_txn([], [op_put(b"a")]), op_txn([], [op_delete(b"a")])],
        ):
            await pair.txn(success=success)
            await pair.txn(failure=success)
        await pair.get(*ALL)

    async def test_the_number_of_operations_is_bounded(self, pair: Pair):
        code, text = await pair.txn(success=[op_put(b"%d" % n) for n in range(129)])
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: too many operations in txn request",
        )
        await pair.txn(success=[op_put(b"%d" % n) for n in range(128)])
        await pair.txn(failure=[op_put(b"%d" % n) for n in range(129)])
        await pair.txn(compare=[version(b"a", proto.EQUAL, 0)] * 129)
        await pair.txn(success=[op_txn([], [op_put(b"%d" % n) for n in range(127)])])
        await pair.txn(success=[op_txn([], [op_put(b"%d" % n) for n in range(128)])])
        await pair.txn(success=[proto.RequestOp()])

    async def test_random_requests_get_equal_responses(self, pair: Pair):
        choose = random.Random(3)
        for _ in range(400):
            name, request = random_request(choose)
            await pair.ask(name, request)
        await pair.get(*ALL)


def random_request(choose: random.Random) -> tuple[str, Any]:
    kind = choose.choice(["range", "put", "delete_range", "txn", "txn", "txn"])
    if kind == "txn":
        return kind, random_txn(choose, 3)
    operation = random_operation(choose, 0, kind)
    return kind, getattr(operation, operation.WhichOneof("choice0"))


def random_txn(choose: random.Random, depth: int) -> Any:
    def compare() -> Any:
        fields = ("version", "create_revision", "mod_revision", "value", "lease")
        target = choose.randrange(5)
        number = choose.randrange(4)
        return proto.Compare(
            target=target,
            result=choose.randrange(4),
            **random_range(choose),
            **{fields[target]: b"%d" % number if target == proto.VALUE else number},
        )

    def operations() -> list[Any]:
        kinds = ["range", "put", "put", "delete_range", *(["txn"] if depth else [])]
        return [
            random_operation(choose, depth, choose.choice(kinds))
            for _ in range(choose.randrange(4))
        ]

    return txn([compare() for _ in range(choose.randrange(2))], operations(), operations())


def random_operation(choose: random.Random, depth: int, kind: str) -> Any:
    def flip() -> bool:
        return choose.random() < 0.3

    match kind:
        case "range":
            return op_get(
                **_named(random_range(choose)),
                limit=choose.randrange(4),
                sort_order=choose.randrange(3),
                sort_target=choose.randrange(5),
                keys_only=flip(),
                count_only=flip(),
            )
        case "put":
            key = random_range(choose)["key"]
            ignore = flip()
            value = b"" if ignore else b"%d" % choose.randrange(4)
            return op_put(key, value, prev_kv=flip(), ignore_value=ignore, ignore_lease=flip())
        case "delete_range":
            return op_delete(**_named(random_range(choose)), prev_kv=flip())
        case _:
            return proto.RequestOp(request_txn=random_txn(choose, depth - 1))


def _named(where: dict[str, bytes]) -> dict[str, bytes]:
    return {"key": where["key"], "end": where["range_end"]}


def random_range(choose: random.Random) -> dict[str, bytes]:
    names = [b"a", b"a/1", b"a/2", b"b", b"c"]
    ends = [b"", b"", b"", b"\0", b"a0", b"b", b"d"]
    return {"key": choose.choice(names), "range_end": choose.choice(ends)}


class TestLeases:
    async def test_lease_ids_and_times(self, pair: Pair):
        answer = await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=5))
        assert (answer.ID, answer.TTL) == (5, 60)
        code, text = await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=5))
        assert (code, text) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "etcdserver: lease already exists",
        )
        code, text = await pair.ask("grant", proto.LeaseGrantRequest(TTL=9_000_000_001))
        assert (code, text) == (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: too large lease TTL")
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=9_000_000_001, ID=5))
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=5))
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=5))
        for ttl in (0, -7, 1, 2):
            await pair.ask("grant", proto.LeaseGrantRequest(TTL=ttl, ID=-3))
            await pair.ask("revoke", proto.LeaseRevokeRequest(ID=-3))
        chosen = await pair.wire.grant(proto.LeaseGrantRequest(TTL=60))
        assert chosen.ID > 0

    async def test_remaining_time_and_attached_keys(self, pair: Pair):
        await pair.ask("time_to_live", proto.LeaseTimeToLiveRequest(ID=5, keys=True))
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=9_000_000_000, ID=5))
        await pair.put(b"a", lease=5)
        request = proto.LeaseTimeToLiveRequest(ID=5, keys=True)
        for server in (pair.etcd, pair.wire):
            answer = await server.time_to_live(request)
            assert (answer.ID, answer.grantedTTL, list(answer.keys)) == (5, 9_000_000_000, [b"a"])
            assert 0 <= answer.grantedTTL - answer.TTL <= 5
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=6))
        await pair.ask("leases", proto.LeaseLeasesRequest())
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=5))
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=6))
        await pair.get(*ALL)

    async def test_renewals(self, pair: Pair):
        await pair.ask("grant", proto.LeaseGrantRequest(TTL=60, ID=5))
        for server in (pair.etcd, pair.wire):
            async with Stream(server.keepalive()) as stream:
                for lease in (5, 12345, 5):
                    await stream.send(proto.LeaseKeepAliveRequest(ID=lease))
                answers = await stream.take(3)
                assert [(a.ID, a.TTL) for a in answers] == [(5, 60), (12345, 0), (5, 60)]
                await stream.call.done_writing()
                assert await stream.take(1) == [grpc.aio.EOF]
                assert await stream.call.code() is grpc.StatusCode.OK
        await pair.ask("revoke", proto.LeaseRevokeRequest(ID=5))

    async def test_many_renewals_on_one_stream(self, pair: Pair):
        async with Stream(pair.wire.keepalive()) as stream:
            for lease in range(1, 501):
                await stream.send(proto.LeaseKeepAliveRequest(ID=lease))
            answers = await stream.take(500)
        assert [answer.ID for answer in answers] == list(range(1, 501))


class TestWatches:
    async def test_many_watches_on_one_stream(self, pair: Pair):
        start = (await pair.put(b"x")).header.revision + 1
        await pair.put(b"a", b"1")
        await pair.put(b"b", b"1")
        await pair.delete(b"a")
        await pair.txn(success=[op_put(b"a/1"), op_put(b"b/1"), op_delete(b"b")])

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"a", start_revision=start)
            messages = await stream.take(1)
            while sum(len(message.events) for message in messages) < 2:
                messages += await stream.take(1)
            await stream.create(b"b", b"\0", start_revision=start, watch_id=7)
            messages += await stream.take(1)
            while sum(len(m.events) for m in messages if m.watch_id == 7) < 3:
                messages += await stream.take(1)
            await stream.create(b"", start_revision=start)
            await stream.create(b"a", b"b")
            messages += await stream.take(2)
            return merged(messages)

        messages = await pair.watch(use)
        assert [message.watch_id for message in messages if message.created] == [0, 7, 1, 2]

    async def test_refused_watches_state_the_reason(self, pair: Pair):
        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"a", watch_id=3)
            await stream.create(b"a", watch_id=3)
            await stream.create(b"b", b"a")
            await stream.create(b"b", b"b")
            await stream.cancel(99)
            messages = await stream.take(4)
            await stream.is_silent()
            return messages

        messages = await pair.watch(use)
        assert [message.canceled for message in messages] == [False, True, True, True]

    async def test_a_deletion_has_only_a_key_and_a_revision(self, pair: Pair):
        start = (await pair.put(b"a", b"1")).header.revision
        await pair.delete(b"a")

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"a", start_revision=start, prev_kv=True)
            messages = await stream.take(1)
            while sum(len(message.events) for message in messages) < 2:
                messages += await stream.take(1)
            return merged(messages)

        messages = await pair.watch(use)
        put, delete = messages[-1].events
        assert not put.HasField("prev_kv")
        assert delete.prev_kv.value == b"1"
        assert delete.kv == proto.KeyValue(key=b"a", mod_revision=start + 1)

    @pytest.mark.parametrize("filters", [[proto.NOPUT], [proto.NODELETE], [0, 1], [5]])
    async def test_filters(self, pair: Pair, filters: list[int]):
        start = (await pair.put(b"a", b"1")).header.revision
        await pair.delete(b"a")
        await pair.txn(success=[op_put(b"a"), op_delete(b"none")])
        expected = {(0,): 1, (1,): 2, (0, 1): 0, (5,): 3}[tuple(filters)]

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"a", start_revision=start, filters=filters)
            messages = await stream.take(1)
            while sum(len(message.events) for message in messages) < expected:
                messages += await stream.take(1)
            await stream.is_silent()
            return merged(messages)

        await pair.watch(use)

    async def test_live_events_are_sent_as_they_happen(self, pair: Pair):
        by_server = []
        for server in (pair.etcd, pair.wire):
            async with Stream(server.watch()) as stream:
                await stream.create(b"k", b"l", prev_kv=True)
                messages = await stream.take(1)
                for value in (b"1", b"2"):
                    await server.put(proto.PutRequest(key=b"k", value=value))
                    messages += await stream.take(1)
                await server.delete_range(proto.DeleteRangeRequest(key=b"k"))
                messages += await stream.take(1)
                by_server.append(list(map(plain, messages)))
        assert by_server[0] == by_server[1]

    async def test_a_watch_waits_for_a_future_revision(self, pair: Pair):
        newest = (await pair.put(b"x")).header.revision
        by_server = []
        for server in (pair.etcd, pair.wire):
            async with Stream(server.watch()) as stream:
                await stream.create(b"k", start_revision=newest + 2)
                messages = await stream.take(1)
                for value in (b"1", b"2", b"3"):
                    await server.put(proto.PutRequest(key=b"k", value=value))
                messages += await stream.take(2)
                by_server.append(list(map(plain, messages)))
        assert by_server[0] == by_server[1]

    async def test_a_cancelled_watch_is_silent(self, pair: Pair):
        by_server = []
        for server in (pair.etcd, pair.wire):
            async with Stream(server.watch()) as stream:
                await stream.create(b"k")
                await stream.create(b"k")
                messages = await stream.take(2)
                await stream.cancel(0)
                messages += await stream.take(1)
                await server.put(proto.PutRequest(key=b"k"))
                messages += await stream.take(1)
                await stream.is_silent()
                await stream.create(b"k")
                messages += await stream.take(1)
                by_server.append(list(map(plain, messages)))
        assert by_server[0] == by_server[1]

    async def test_a_compacted_revision_cancels_the_watch(self, pair: Pair):
        for value in (b"1", b"2", b"3"):
            newest = (await pair.put(b"k", value)).header.revision
        await pair.put(b"other")
        await pair.ask("compact", proto.CompactionRequest(revision=newest))

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"k", start_revision=newest - 1)
            messages = await stream.take(2)
            # At the compacted revision itself, whose puts still exist.
            await stream.create(b"k", start_revision=newest)
            return merged(messages + await stream.take(2))

        messages = await pair.watch(use)
        assert messages[1].canceled
        assert messages[1].compact_revision == newest
        assert [event.kv.value for event in messages[3].events] == [b"3"]

    async def test_the_id_of_a_watch_that_compaction_cancelled_is_used_until_the_client_cancels_it(
        self, pair: Pair
    ):
        for value in (b"1", b"2"):
            newest = (await pair.put(b"k", value)).header.revision
        await pair.ask("compact", proto.CompactionRequest(revision=newest))

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"k", start_revision=newest - 1, watch_id=7, progress_notify=True)
            messages = await stream.take(2)
            await stream.create(b"k", watch_id=7)
            await stream.cancel(7)
            messages += await stream.take(2)
            await stream.cancel(7)
            await stream.create(b"k", watch_id=7)
            messages += await stream.take(1)
            await stream.is_silent()
            return messages

        messages = await pair.watch(use)
        assert [message.canceled for message in messages] == [False, True, True, True, False]
        assert "duplicate" in messages[2].cancel_reason

    async def test_progress_on_request(self, pair: Pair):
        await pair.put(b"x")

        async def use(stream: Stream) -> list[Any]:
            await stream.create(b"k")
            messages = await stream.take(1)
            await stream.ask_for_progress()
            return messages + await stream.take(1)

        messages = await pair.watch(use)
        assert messages[-1].watch_id == -1

    async def test_progress_follows_all_events_that_it_covers(self, pair: Pair):
        start = (await pair.put(b"x")).header.revision
        for number in range(200):
            await pair.wire.put(proto.PutRequest(key=b"k", value=b"%d" % number))
        async with Stream(pair.wire.watch()) as stream:
            await stream.create(b"k", start_revision=start)
            await stream.ask_for_progress()
            messages: list[Any] = []
            while not messages or messages[-1].watch_id != -1:
                messages += await stream.take(1)
        assert sum(len(message.events) for message in messages) == 200
        assert messages[-1].header.revision == start + 200

    async def test_periodic_progress(self, pair: Pair):
        async with Stream(pair.wire.watch()) as stream:
            await stream.create(b"k", progress_notify=True)
            await stream.create(b"k")
            await stream.take(2)
            revision = (await pair.put(b"x")).header.revision
            messages = await stream.take(1)
            while messages[-1].header.revision < revision:
                messages += await stream.take(1)
            messages += await stream.take(1)
        assert {(m.watch_id, len(m.events)) for m in messages} == {(0, 0)}
        assert [m.header.revision for m in messages[-2:]] == [revision] * 2

    async def test_large_revisions_come_in_fragments(self, pair: Pair):
        for number in range(5):
            await pair.put(b"k%d" % number, b"%d" % number * 900_000)
        start = (await pair.delete(b"k", b"l")).header.revision
        for server in (pair.etcd, pair.wire):
            async with Stream(server.watch()) as stream:
                await stream.create(b"k", b"l", start_revision=start, prev_kv=True, fragment=True)
                await stream.create(b"k", b"l", start_revision=start, prev_kv=True)
                messages: list[Any] = []
                while sum(len(message.events) for message in messages) < 10:
                    messages += await stream.take(1)
            pieces = [m for m in messages if m.watch_id == 0 and not m.created]
            assert [m.fragment for m in pieces] == [True] * (len(pieces) - 1) + [False]
            assert len(pieces) > 1
            assert all(message.ByteSize() < 2 * 1024 * 1024 for message in pieces)
            (whole,) = [m for m in messages if m.watch_id == 1 and not m.created]
            assert [e for piece in pieces for e in piece.events] == list(whole.events)

    async def test_a_client_that_half_closes_its_stream_still_gets_events(self, pair: Pair):
        for server in (pair.etcd, pair.wire):
            async with Stream(server.watch()) as stream:
                await stream.create(b"k")
                await stream.take(1)
                await stream.call.done_writing()
                await server.put(proto.PutRequest(key=b"k"))
                (message,) = await stream.take(1)
                assert len(message.events) == 1

    async def test_a_client_that_does_not_read_delays_no_other(self, pair: Pair):
        """50 MB for a client that reads none of them: the other client gets them at once, the
        server buffers none beside the history, and after a compaction the slow watch is
        cancelled."""
        async with Stream(pair.wire.watch()) as asleep, Stream(pair.wire.watch()) as awake:
            await asleep.create(b"k")
            await awake.create(b"k")
            await awake.take(1)
            await asleep.take(1)
            got = 0
            for _ in range(500):
                await pair.wire.put(proto.PutRequest(key=b"k", value=b"x" * 100_000))
                while got < 1:
                    (message,) = await awake.take(1)
                    got += len(message.events)
                got = 0
            newest = pair.host.read(lambda engine: engine.confirmed)
            waiting = pair.host.read(
                lambda engine: sorted(
                    len(w.pending) for g in engine._watchers._groups.values() for w in g
                )
            )
            assert waiting[0] == 0
            assert waiting[-1] > 300
            for _ in range(700):
                await pair.wire.put(proto.PutRequest(key=b"k", value=b"x"))
            await pair.wire.compact(proto.CompactionRequest(revision=newest + 650))
            seen = 0
            while not (message := (await asleep.take(1))[0]).canceled:
                seen += len(message.events)
            assert message.compact_revision == newest + 650
            assert seen < 500
