"""Locks: against bare round trips, a textbook recipe on the same driver, and the peers' locks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.bare_etcd import METADATA, TIMEOUT, bare, fresh_etcd
from bench.etcd_client import compared, show
from bench.etcd_peers import Peer, installed
from bench.load import Load, in_flight
from bench.measure import Line, Plan, Section, Target, interleaved, milliseconds, ratio
from bench.processes import ProcessFailed, output
from bench.zookeeper import fresh_zookeeper
from mooring.hub import connect
from mooring.store.etcd import proto
from mooring.store.etcd.proto import Methods
from mooring.testing.redis import RedisServer

_PYTHON = Path(sys.executable)
_TOOZ = Peer("tooz", ("tooz==9.1.0", "etcd3gw==2.7.0", "requests==2.34.2", "urllib3==2.8.0"))
_CROWD = 1000

_WITHIN = 120.0  # seconds until many contenders are queued, and until they are gone

Measured = Callable[[], Awaitable[Load]]


async def run(plan: Plan) -> list[Section]:
    return [
        Section(
            "Locks: two round trips",
            "One caller acquires and releases an uncontended lock, alternating in one process "
            "with the same two transactions sent through gRPC's stubs.",
            await _bare(plan.finer(10)),
        ),
        Section(
            "Locks: uncontended",
            "One caller acquires and releases one lock repeatedly, in its own process: ours "
            "and tooz on etcd, kazoo on ZooKeeper, and redis-py on Redis, which persists "
            "nothing and has no fencing token.",
            await _uncontended(plan),
        ),
        Section(
            "Locks: contended",
            "Contenders on two connections of one process; each requests the lock again as "
            "soon as it releases it. A hand-off is a change of holder. The recipe is the "
            "textbook lock on our own driver: a waiter watches the key of its predecessor from "
            "the revision at which it read it. redis-py's lock runs with its defaults and "
            "polls every 0.1 s. Times are p50 from a release to the next acquisition; with "
            f"{_CROWD} contenders, all but one are waiting.",
            await _handed_over(plan),
        ),
    ]


async def _bare(plan: Plan) -> list[Line]:
    with fresh_etcd() as server:
        async with bare(server) as methods, connect(server.url) as hub:
            lock = hub.lock("/bench/lock")

            async def ours(_: int) -> None:
                async with lock:
                    pass

            lease = (await methods.grant(proto.LeaseGrantRequest(TTL=600))).ID
            theirs = partial(_round_trips, methods, lease)
            calls: dict[str, Callable[[int], Awaitable[object]]] = {
                "ours": ours,
                "two round trips": theirs,
            }
            for call in calls.values():
                await in_flight(call, 1, 0.3)
            sides = {
                name: partial(in_flight, call, 1, plan.seconds) for name, call in calls.items()
            }
            taken = await interleaved(plan, "lock", sides, show)
    what = "acquire and release, two bare round trips"
    return [compared(what, taken["ours"], taken["two round trips"], Target("≥", 0.9), _OURS)]


_OURS = (
    "In a profile of a thousand calls, gRPC's own calls take 44 % of the loop's time. The rest "
    "is validating and building the transactions, their deadlines, and the bookkeeping of the "
    "queue."
)


async def _round_trips(methods: Methods, lease: int, _: int) -> None:
    name = b"/bench/bare/%x" % lease
    start, end = b"/bench/bare/", b"/bench/bare0"
    first = proto.RequestOp(
        request_range=proto.RangeRequest(
            key=start,
            range_end=end,
            limit=1,
            sort_order=proto.ASCEND,
            sort_target=proto.SORT_BY_CREATE,
        )
    )
    put = proto.RequestOp(request_put=proto.PutRequest(key=name, value=b"bare", lease=lease))
    absent = proto.Compare(key=name, target=proto.CREATE, result=proto.EQUAL, create_revision=0)
    taken = await methods.txn(
        proto.TxnRequest(compare=[absent], success=[put, first], failure=[first]),
        timeout=TIMEOUT,
        metadata=METADATA,
    )
    mine = proto.Compare(
        key=name,
        target=proto.CREATE,
        result=proto.EQUAL,
        create_revision=taken.header.revision,
    )
    delete = proto.RequestOp(request_delete_range=proto.DeleteRangeRequest(key=name))
    await methods.txn(
        proto.TxnRequest(compare=[mine], success=[delete]), timeout=TIMEOUT, metadata=METADATA
    )


async def _uncontended(plan: Plan) -> list[Line]:
    failed: dict[str, str] = {}
    with fresh_etcd() as etcd, _redis() as redis:
        ours = partial(_peer, "mooring-locks", _PYTHON, etcd.address, "uncontended")
        sides: dict[str, Measured] = {"ours": partial(ours, plan.seconds)}
        sides["redis-py"] = partial(
            _peer, "redis-locks", _PYTHON, redis.address, "uncontended", plan.seconds
        )
        try:
            tooz = await installed(_TOOZ, plan)
            sides["tooz"] = partial(_peer, "tooz", tooz, etcd.address, "uncontended", plan.seconds)
        except ProcessFailed as problem:
            failed["tooz"] = str(problem)
        try:
            async with fresh_zookeeper() as zookeeper:
                sides["kazoo"] = partial(
                    _peer, "kazoo-locks", _PYTHON, zookeeper.address, "uncontended", plan.seconds
                )
                taken = await interleaved(plan, "lock, alone", sides, show)
        except ProcessFailed as problem:
            failed["kazoo"] = str(problem)
            sides.pop("kazoo", None)
            taken = await interleaved(plan, "lock, alone", sides, show)
    targets = {"kazoo": Target("≥", 1.4), "tooz": Target("≥", 4.0)}
    return _lines("acquire and release", taken, targets, failed)


async def _handed_over(plan: Plan) -> list[Line]:
    failed: dict[str, str] = {}
    with fresh_etcd() as etcd, _redis() as redis:
        ours = partial(_peer, "mooring-locks", _PYTHON, etcd.address)
        sides: dict[str, Measured] = {
            "ours": partial(ours, "hand over of 2", plan.seconds),
            "the recipe": partial(ours, "recipe of 2", plan.seconds),
            f"ours, {_CROWD} contenders": partial(ours, f"hand over of {_CROWD}", plan.seconds),
            "ours, 64 contenders": partial(ours, "hand over of 64", plan.seconds),
            "redis-py": partial(
                _peer, "redis-locks", _PYTHON, redis.address, "hand over of 2", plan.seconds
            ),
        }
        try:
            async with fresh_zookeeper() as zookeeper:
                sides["kazoo"] = partial(
                    _peer,
                    "kazoo-locks",
                    _PYTHON,
                    zookeeper.address,
                    "hand over of 2",
                    plan.seconds,
                )
                taken = await interleaved(plan, "hand-offs", sides, show)
        except ProcessFailed as problem:
            failed["kazoo"] = str(problem)
            sides.pop("kazoo", None)
            taken = await interleaved(plan, "hand-offs", sides, show)
    two, crowd = taken["ours"], taken.pop(f"ours, {_CROWD} contenders")
    targets = {"kazoo": Target("≥", 1.7), "redis-py": Target("≥", 50.0)}
    return [
        *_lines("hand-offs between 2", taken, targets, failed),
        Line(
            f"one hand-off, {_CROWD} contenders",
            milliseconds(_p50(crowd)),
            f"2 contenders {milliseconds(_p50(two))}",
            ratio([load.p50_ms for load in crowd], [load.p50_ms for load in two]),
            Target("≤", 1.5),
        ),
    ]


def _p50(loads: list[Load]) -> float:
    ordered = sorted(load.p50_ms for load in loads)
    return ordered[len(ordered) // 2]


def _lines(
    what: str, taken: dict[str, list[Load]], targets: dict[str, Target], failed: dict[str, str]
) -> list[Line]:
    lines = [
        compared(
            f"{what}, {name}", taken["ours"], theirs, targets.get(name), _REMARKS.get(name, "")
        )
        for name, theirs in taken.items()
        if name != "ours"
    ]
    return lines + [
        Line(f"{what}, {name}", "", remark=f"not measured: {problem}")
        for name, problem in failed.items()
    ]


_REMARKS = {
    "tooz": (
        "A lock on etcd costs at least two round trips. If those take a quarter of tooz's time "
        "(the first lock table has their p50), 4 × leaves no margin."
    ),
    "redis-py": (
        "By default it sleeps for 0.1 s between attempts, so 50 × means a hand-off within 2 "
        "ms, most of which is two etcd round trips on this machine."
    ),
    "kazoo": (
        "A hand-off is a release and the next acquisition, one round trip each, with the "
        "delivery of the release event between them."
    ),
}


async def _peer(name: str, python: Path, address: str, operation: str, seconds: float) -> Load:
    script = f"bench.peers.{name.replace('-', '_')}"
    command = (str(python), "-m", script, address, operation, "1", str(seconds))
    return Load(**json.loads(await output(*command, within=seconds + _WITHIN)))


@contextmanager
def _redis() -> Iterator[RedisServer]:
    with (
        tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder,
        RedisServer(Path(folder), series="6.2") as server,
    ):
        server.start()
        yield server
