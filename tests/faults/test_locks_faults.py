"""Locks while their holders and members of the store are stopped, disconnected and killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import mooring
import mooring.sync
from mooring.backends import open_store
from mooring.errors import Closed, LockLost, LockTimeout, OutcomeUnknown, Unavailable
from mooring.hub import Hub
from mooring.locks.lease_pool import LeasePool
from mooring.locks.lock import Lock
from mooring.store import Store, key, prefix
from mooring.testing.etcd import EtcdCluster, EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.waiting import eventually

_PATIENCE = 60.0


class Step(NamedTuple):
    name: str
    what: str
    token: int
    item: str


class Contender:
    """`tests.faults.contender` in a separate process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, steps: list[Step]) -> None:
        self.name, self.process, self._said = name, process, steps
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, arena: Arena, url: str) -> Contender:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.contender",
            url,
            arena.lock,
            name,
            arena.mode,
            str(arena.ttl),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return cls(name, process, arena.steps)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            what, token, *item = line.decode().split()
            self._said.append(Step(self.name, what, int(token), item[0] if item else ""))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.reading


class Arena:
    """Contenders for one lock, and their steps in the order in which they were received."""

    def __init__(self, url: str, lock: str, mode: str, ttl: float) -> None:
        self.url, self.lock, self.mode, self.ttl = url, lock, mode, ttl
        self.steps: list[Step] = []
        self.contenders: list[Contender] = []
        self._started = 0

    async def add(self, url: str = "") -> Contender:
        self._started += 1
        name = f"{self.lock}.{self._started}"
        contender = await Contender.start(name, self, url or self.url)
        self.contenders.append(contender)
        return contender

    def count(self, what: str) -> int:
        return sum(step.what == what for step in self.steps)

    async def pause(self) -> None:
        """Stop the contender that is about to write, until another one has written, and a little
        more."""
        since = len(self.steps)
        await eventually(
            lambda: bool(self.steps[since:]) and self.steps[-1].what == "read",
            within=_PATIENCE,
            what="a contender about to write",
        )
        holder = next(one for one in self.contenders if one.name == self.steps[-1].name)
        holder.signal(signal.SIGSTOP)
        since, token = len(self.steps), self.steps[-1].token
        try:
            await eventually(
                lambda: any(
                    steps.what == "wrote" and steps.name != holder.name
                    for steps in self.steps[since:]
                ),
                within=_PATIENCE,
                what="the turn of another contender",
            )
        finally:
            holder.signal(signal.SIGCONT)
        outcomes = ("wrote", "rejected", "unknown")
        await eventually(
            lambda: any(
                steps.token == token and steps.what in outcomes for steps in self.steps[since:]
            ),
            within=_PATIENCE,
            what="the end of a stale write",
        )

    async def kill_one(self) -> None:
        """Kill the holder, and start another contender."""
        await eventually(
            lambda: bool(self.steps) and self.steps[-1].what == "read", within=_PATIENCE
        )
        holder = next(one for one in self.contenders if one.name == self.steps[-1].name)
        self.contenders.remove(holder)
        await holder.kill()
        await self.add()
        await self.makes_progress()

    async def makes_progress(self) -> None:
        wrote = self.count("wrote")
        await eventually(
            lambda: self.count("wrote") > wrote + 2, within=_PATIENCE, what="more writes"
        )

    async def aclose(self) -> None:
        await asyncio.gather(*(contender.kill() for contender in self.contenders))

    async def lost_updates(self, store: Store) -> list[str]:
        """Writes that were reported as successful but are missing."""
        entry = (await store.read(key(f"{self.lock}-register".encode()))).first
        stored = set(entry.value.decode().split()) if entry else set()
        return [
            steps.item for steps in self.steps if steps.what == "wrote" and steps.item not in stored
        ]


@contextlib.asynccontextmanager
async def arena(
    url: str, lock: str, mode: str, *, size: int = 2, ttl: float = 2.0
) -> AsyncIterator[Arena]:
    opened = Arena(url, lock, mode, ttl)
    try:
        for _ in range(size):
            await opened.add()
        await opened.makes_progress()
        yield opened
    finally:
        await opened.aclose()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as members:
        members.start()
        yield members


async def no_update_is_lost(members: list[EtcdServer], ttl: float) -> None:
    """Holders are stopped for longer than the TTL, killed and disconnected; members are killed."""
    url = "etcd://" + ",".join(member.address for member in members)
    async with arena(url, "/one", "fenced", ttl=ttl) as one, open_store(url) as store:
        for _ in range(15):  # some may have written before they were stopped
            await one.pause()
            if one.count("rejected"):
                break
        assert one.count("rejected"), "it must bite"
        await one.kill_one()
        await cut_off(members, one)
        for member in members:
            member.kill()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(member.start)
        await one.makes_progress()
        await one.aclose()
        assert await one.lost_updates(store) == []


@pytest.mark.timeout(120)
async def test_with_fencing_no_update_is_lost(fresh_etcd: Callable[..., EtcdServer]):
    # etcd 3.5.0 to 3.5.2 can lose a write when killed (etcd-io/etcd#13766).
    await no_update_is_lost([fresh_etcd(series="3.4")], ttl=1.0)


@pytest.mark.extended("the same faults on one etcd run by default")
@pytest.mark.timeout(240)
async def test_with_fencing_no_update_is_lost_on_a_cluster(cluster: EtcdCluster):
    await no_update_is_lost(cluster.members, ttl=2.0)


async def cut_off(members: list[EtcdServer], where: Arena) -> None:
    """Put a contender behind proxies that swallow everything while it holds the lock."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(FaultProxy(member.address)) for member in members
        ]
        behind = "etcd://" + ",".join(proxy.address for proxy in proxies)
        contender = await where.add(behind)
        await eventually(
            lambda: bool(where.steps) and where.steps[-1][:2] == (contender.name, "read"),
            within=_PATIENCE,
            what="the turn of who is cut off",
        )
        for proxy in proxies:
            proxy.blackhole()
        await where.makes_progress()
        for proxy in proxies:
            proxy.heal()
        await where.makes_progress()
        where.contenders.remove(contender)
        await contender.kill()


@pytest.mark.timeout(120)
async def test_without_fencing_updates_are_lost(fresh_etcd: Callable[..., EtcdServer]):
    """The same without the check, to show that it makes the difference."""
    server = fresh_etcd()
    async with (
        arena(server.url, "/one", "unfenced", ttl=1) as one,
        open_store(server.url) as store,
    ):
        for _ in range(8):  # some may have written before they were stopped
            await one.pause()
            if await one.lost_updates(store):
                break
        await one.aclose()
        assert one.count("rejected") == 0
        assert len(await one.lost_updates(store)) >= 1


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_a_thousand_stopped_holders_lose_no_update(cluster: EtcdCluster):
    locks, pauses = 8, 1000
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(cluster.url))
        arenas = [
            await stack.enter_async_context(arena(cluster.url, f"/lock{number}", "fenced"))
            for number in range(locks)
        ]
        left, chance = pauses, random.Random()

        async def pausing(where: Arena) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await where.pause()
                if chance.random() < 0.05:
                    await where.kill_one()

        async def killing() -> None:
            while left > 0:
                await asyncio.sleep(30)
                member = chance.choice(cluster.members)
                member.kill()
                await asyncio.sleep(1)
                await asyncio.to_thread(member.start)

        await asyncio.gather(killing(), *map(pausing, arenas))
        for where in arenas:
            await where.aclose()
            assert await where.lost_updates(store) == []
        assert sum(where.count("rejected") for where in arenas) >= pauses * 0.9


async def leases(server: EtcdServer) -> int:
    listed = await asyncio.to_thread(server.ctl, "lease", "list")
    return int(listed.split()[1])


async def nothing_is_left(server: EtcdServer) -> None:
    async with open_store(server.url) as store:

        async def nothing() -> bool:
            if not (await store.read(prefix(b"/"))).entries and await leases(server) == 0:
                return True
            await asyncio.sleep(0.3)  # a process lists the leases
            return False

        await eventually(nothing, what="no keys and no leases")


async def reaches(hub: Hub) -> bool:
    """Whether the store of a hub answers."""
    try:
        await hub.store.read(key(b"/up"))
    except Unavailable:
        return False
    return True


@contextlib.asynccontextmanager
async def behind_proxy(
    server: EtcdServer, timeout: str = "1s"
) -> AsyncIterator[tuple[FaultProxy, Hub, Hub]]:
    """A hub behind a proxy, and one with a direct connection, in a new namespace."""
    namespace = f"namespace=/{uuid.uuid4().hex}"
    async with (
        FaultProxy(server.address) as proxy,
        mooring.connect(f"etcd://{proxy.address}?{namespace}&timeout={timeout}") as hub,
        mooring.connect(f"{server.url}?{namespace}") as other,
    ):
        await hub.store.read(key(b"/up"))
        yield proxy, hub, other


@pytest.mark.parametrize("waits", [False, True], ids=["free", "held"])
async def test_an_acquire_whose_reply_was_lost_leaves_no_orphan(
    fresh_etcd: Callable[..., EtcdServer], waits: bool
):
    server = fresh_etcd()
    async with behind_proxy(server) as (proxy, hub, other):
        async with hub.lock("warm", ttl=1):
            pass  # a lease is available: the next request is the place in the queue
        holder = await other.lock("lock").acquire() if waits else None
        proxy.mute()
        acquiring = asyncio.get_running_loop().create_task(hub.lock("lock", ttl=1).acquire())

        async def arrived() -> bool:
            lines = await other.locks("lock")
            return bool(lines) and len(lines[0].holders + lines[0].waiting) == 1 + waits

        await eventually(arrived, what="a place whose owner got no reply")
        with pytest.raises(Unavailable):
            await acquiring
        proxy.heal()
        proxy.reset()
        if holder is not None:
            await holder.release()
        async with other.lock("lock", timeout=20):
            pass
        await eventually(partial(reaches, hub))
        async with hub.lock("lock", timeout=20):
            pass
    await nothing_is_left(server)


KINDS: dict[str, Callable[[Hub, float], Lock]] = {
    "lock": lambda hub, timeout: hub.lock("slow", ttl=7, timeout=timeout),
    "reader": lambda hub, timeout: hub.rwlock("slow", ttl=7, timeout=timeout).read(),
    "writer": lambda hub, timeout: hub.rwlock("slow", ttl=7, timeout=timeout).write(),
    "semaphore": lambda hub, timeout: hub.semaphore("slow", 2, ttl=7, timeout=timeout),
    "election": lambda hub, timeout: hub.election("slow", ttl=7, timeout=timeout).campaign("x"),
}


@pytest.mark.parametrize(
    ("kind", "timeout"),
    [
        ("lock", 0.0),
        *((kind, 0.5) for kind in KINDS),
        *(
            pytest.param(kind, 0.0, marks=pytest.mark.extended("one lock shows the three seconds"))
            for kind in KINDS
            if kind != "lock"
        ),
    ],
)
@pytest.mark.deadline
async def test_one_deadline_covers_all_of_an_acquire_whose_replies_are_lost(
    kind: str, timeout: float, etcd: Callable[[str], EtcdServer]
):
    """Grant, commit, revocation and retries; the error states what may remain, and for how long."""
    async with FaultProxy(etcd("3.5").address) as proxy:
        url = f"etcd://{proxy.address}?namespace=/{kind}-{time.monotonic_ns()}"
        async with mooring.connect(url) as hub:
            async with hub.lock("warm", ttl=7):
                pass  # leaves a lease that will be used again
            proxy.mute()
            started = time.monotonic()
            with pytest.raises((LockTimeout, OutcomeUnknown), match="until its TTL of 7s ends"):
                await KINDS[kind](hub, timeout).acquire()
            assert time.monotonic() - started < (timeout or 3) + 1.5
            proxy.heal()
            proxy.reset()


@pytest.mark.deadline
async def test_a_try_without_a_lease_is_bounded_and_leaves_no_key(
    etcd: Callable[[str], EtcdServer],
):
    """The grant itself gets no reply: no key was sent, so none can remain."""
    async with (
        FaultProxy(etcd("3.5").address) as proxy,
        mooring.connect(f"etcd://{proxy.address}") as hub,
    ):
        await hub.store.read(key(b"/warm"))
        proxy.mute()
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await hub.lock("slow", ttl=7, timeout=0).acquire()
        assert time.monotonic() - started < 4.5
        assert "TTL" not in str(caught.value)
        proxy.heal()
        proxy.reset()


@pytest.mark.deadline
async def test_one_deadline_covers_the_end_of_all_leases_if_the_store_is_silent(
    etcd: Callable[[str], EtcdServer],
):
    """A lease that is in use, and one that is being granted."""
    async with FaultProxy(etcd("3.5").address) as proxy:
        store = open_store(f"etcd://{proxy.address}")
        leases = LeasePool(store)
        await leases.take(7)
        proxy.mute()
        asks = asyncio.get_running_loop().create_task(leases.take(7))
        name = "grant of a session's lease"
        await eventually(lambda: name in {task.get_name() for task in asyncio.all_tasks()})
        started = time.monotonic()
        await leases.aclose()
        assert time.monotonic() - started < 4
        with pytest.raises(Closed):
            await asks
        await store.aclose()


@pytest.mark.parametrize("acquired", [True, False])
@pytest.mark.deadline
async def test_one_deadline_covers_the_end_of_a_hub_if_the_store_is_silent(
    acquired: bool, etcd: Callable[[str], EtcdServer]
):
    """Registrations and locks, including a lock that was not acquired in time."""
    async with FaultProxy(etcd("3.5").address) as proxy:
        hub = mooring.connect(f"etcd://{proxy.address}?namespace=/{time.monotonic_ns()}")
        await hub.__aenter__()
        await hub.register(mooring.Instance("echo", "10.0.0.1", 80)).__aenter__()
        if acquired:
            await hub.lock("held", ttl=7).acquire()
        proxy.mute()
        if not acquired:
            with pytest.raises(LockTimeout):
                await hub.lock("slow", ttl=7, timeout=0.5).acquire()
        started = time.monotonic()
        await hub.__aexit__(None, None, None)
        assert time.monotonic() - started < 4


@pytest.mark.deadline
async def test_blocking_code_has_the_same_deadline(etcd: Callable[[str], EtcdServer]):
    loop = asyncio.get_running_loop()
    async with FaultProxy(etcd("3.5").address) as proxy:

        def heal() -> None:
            proxy.heal()
            proxy.reset()

        def blocking() -> float:
            with mooring.sync.connect(f"etcd://{proxy.address}") as hub:
                with hub.lock("warm", ttl=7):
                    pass
                proxy.mute()
                started = time.monotonic()
                with pytest.raises(OutcomeUnknown, match="until its TTL of 7s ends"):
                    hub.lock("blocking", ttl=7, timeout=0).acquire()
                took = time.monotonic() - started
                loop.call_soon_threadsafe(heal)
                return took

        assert await asyncio.to_thread(blocking) < 4.5


async def test_a_single_lost_reply_does_not_matter(etcd: Callable[[str], EtcdServer]):
    """The place is given up with its lease, and another one taken."""
    async with behind_proxy(etcd("3.5"), timeout="3s") as (proxy, hub, other):
        async with hub.lock("warm", ttl=5):
            pass
        proxy.mute()
        acquiring = asyncio.get_running_loop().create_task(hub.lock("lock", ttl=5).acquire())

        async def arrived() -> bool:
            return await other.locks("lock") != []

        await eventually(arrived)
        proxy.reset()
        proxy.heal()
        held = await acquiring
        (line,) = await other.locks("lock")
        assert [holder.token for holder in line.holders] == [held.token]
        await held.release()


async def test_a_disconnected_holder_knows_before_another_acquires_the_lock(
    etcd: Callable[[str], EtcdServer],
):
    async with behind_proxy(etcd("3.5")) as (proxy, hub, other):
        events: list[str] = []

        async def body() -> None:
            try:
                async with hub.lock("lock", ttl=4) as held:
                    proxy.blackhole()
                    await eventually(lambda: held.suspended)
                    events.append("in doubt")
                    assert held.remaining > 0
                    await asyncio.sleep(60)
            except LockLost:
                events.append("lost")

        async def rival() -> None:
            async with other.lock("lock", timeout=30):
                events.append("taken")

        task = asyncio.get_running_loop().create_task(body())

        async def held() -> bool:
            return await other.locks("lock") != []

        await eventually(held)
        await asyncio.gather(task, rival())
        assert events == ["in doubt", "lost", "taken"]
        proxy.heal()


async def test_a_waiter_survives_an_unavailable_store(etcd: Callable[[str], EtcdServer]):
    async with behind_proxy(etcd("3.5")) as (proxy, hub, other):
        held = await other.lock("lock").acquire()
        waiting = asyncio.get_running_loop().create_task(hub.lock("lock", ttl=2).acquire())

        async def waiters() -> int:
            return len((await other.locks("lock"))[0].waiting)

        async def stands() -> bool:
            return await waiters() == 1

        async def expired() -> bool:
            return await waiters() == 0

        await eventually(stands)
        proxy.refuse()
        await eventually(expired)
        assert not waiting.done()
        proxy.heal()
        await held.release()
        async with asyncio.timeout(20):
            ours = await waiting
        assert ours.token > held.token
        await ours.release()


@pytest.mark.deadline
async def test_an_unavailable_store_is_reported_at_once(etcd: Callable[[str], EtcdServer]):
    async with behind_proxy(etcd("3.5")) as (proxy, hub, _):
        proxy.refuse()
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await hub.lock("lock").acquire()
        assert time.monotonic() - started < 2  # the timeout of the store is 1 s


async def test_releasing_while_the_store_is_unavailable_is_no_error(
    fresh_etcd: Callable[..., EtcdServer],
):
    server = fresh_etcd()
    async with behind_proxy(server) as (proxy, hub, other):
        async with hub.lock("lock", ttl=1):
            proxy.blackhole()
        proxy.heal()
        async with other.lock("lock", timeout=20):
            pass
    await nothing_is_left(server)


async def test_the_lock_of_a_killed_holder_is_free_after_its_ttl(
    fresh_etcd: Callable[..., EtcdServer],
):
    server = fresh_etcd()
    async with arena(server.url, "/lock", "fenced", size=1, ttl=1) as where:
        await eventually(lambda: where.steps[-1].what == "read", within=_PATIENCE)
        await where.aclose()
        async with mooring.connect(server.url) as hub, hub.lock("/lock", timeout=20):
            pass


async def test_compaction_does_not_disturb_a_queue(etcd: Callable[[str], EtcdServer]):
    async with behind_proxy(etcd("3.5")) as (proxy, hub, other):
        held = await other.lock("lock").acquire()
        waiting = asyncio.get_running_loop().create_task(hub.lock("lock", ttl=10).acquire())

        async def stands() -> bool:
            return len((await other.locks("lock"))[0].waiting) == 1

        await eventually(stands)
        proxy.refuse()
        for _ in range(5):
            async with other.lock("another"):
                pass
        await other.store.compact((await other.store.read(key(b"/x"))).revision)
        await held.release()
        proxy.heal()
        async with asyncio.timeout(20):
            await (await waiting).release()
