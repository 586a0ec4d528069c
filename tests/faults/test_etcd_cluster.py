"""Members of a three-node etcd killed and paused, and a cluster restored from a backup."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.backends import open_store
from mooring.mirror import Mirror, RangeFeed
from mooring.session import Session
from mooring.store import Delete, Entry, Put, Store, key, prefix
from mooring.store.etcd import connection
from mooring.testing.etcd import EtcdCluster, EtcdServer
from mooring.testing.proxy import FaultProxy
from mooring.testing.servers import free_port
from tests.faults.mirror_recorder import PREFIX, Recorder, writing
from tests.waiting import eventually

STALE_WITHIN = 5.0
OLDER = "the client asks for the quorum, whatever the server's series"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as members:
        members.start()
        yield members


@pytest.mark.timeout(120)
async def test_a_rolling_kill_of_every_member_loses_nothing(cluster: EtcdCluster):
    async with (
        open_store(cluster.url) as store,
        open_store(cluster.url) as writer,
        Mirror(RangeFeed(store, prefix(PREFIX))) as mirror,
        Session(store) as session,
    ):
        recorder = Recorder(mirror)
        async with writing(writer) as revisions:
            for member in cluster.members:
                await more_than(revisions, len(revisions) + 20)
                member.kill()
                await asyncio.sleep(0.5)
                await asyncio.to_thread(member.start)
            await more_than(revisions, len(revisions) + 20)
        await recorder.saw_every_revision(writer)
        await eventually(lambda: session.state == "alive")  # it was never lost


@pytest.mark.timeout(150)
async def test_clients_are_distributed_again_after_a_rolling_restart(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
):
    """Each returns to the member that it left, after its restart and at a random moment."""
    monkeypatch.setattr(connection, "RETURN_AFTER", (0.5, 3.0), raising=False)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(cluster.url)) for _ in range(24)]
        for store in stores:
            await stack.enter_async_context(Mirror(RangeFeed(store, prefix(PREFIX))))
        await eventually(partial(left, stores, ""))
        before = [serving(store) for store in stores]
        assert set(before) == {member.address for member in cluster.members}
        for member in cluster.members:
            member.kill()
            await eventually(partial(left, stores, member.address))
            await asyncio.to_thread(member.start)
        await eventually(lambda: [serving(store) for store in stores] == before, within=30)


async def test_watches_move_to_another_member_without_a_gap(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "RETURN_AFTER", (0.5, 1.0))
    returned: list[None] = []
    async with open_store(cluster.url) as store, open_store(cluster.url) as writer:
        feed = RangeFeed(store, prefix(PREFIX))
        async with (
            Mirror(feed, returned=lambda: returned.append(None)) as mirror,
            Session(store, ttl=5) as session,
        ):
            await store.renew(session.lease)
            recorder = Recorder(mirror)
            await writer.commit(Put(PREFIX + b"first", b""))
            await eventually(lambda: len(mirror.items) == 1)  # its watch is established
            await eventually(lambda: serving(store) != "")
            home = serving(store)
            (member,) = [one for one in cluster.members if one.address == home]
            member.kill()
            await eventually(lambda: serving(store) != home and len(returned) == 1)
            async with writing(writer, pause=0.002) as revisions:
                await asyncio.to_thread(member.start)
                await eventually(lambda: serving(store) == home)
                await more_than(revisions, len(revisions) + 50)
            await recorder.saw_every_revision(writer)
            assert len(returned) == 1, "only the kill was a break"
            assert mirror.resyncs == 0
            await store.renew(session.lease)
            assert renewing(store) == home


def left(stores: Sequence[Store], address: str) -> bool:
    return all(serving(store) not in ("", address) for store in stores)


def serving(store: Any) -> str:
    """The member that serves the watches of a store, once no other serves any of them."""
    streams = {
        watch_stream.stream.endpoint.address
        for watch_stream in store._watches._streams
        if watch_stream.watches
    }
    return streams.pop() if len(streams) == 1 else ""


def renewing(store: Any) -> str:
    address: str = store._keepalives._renewals.stream.endpoint.address
    return address


async def more_than(revisions: list[int], count: int) -> None:
    await eventually(lambda: len(revisions) > count)


async def test_clients_leave_a_paused_member(cluster: EtcdCluster):
    async with (
        open_store(cluster.url) as store,
        open_store(cluster.url) as writer,
        Mirror(RangeFeed(store, prefix(PREFIX))) as mirror,
    ):
        recorder = Recorder(mirror)
        await eventually(lambda: serving(store) != "")
        (member,) = [one for one in cluster.members if one.address == serving(store)]
        member.pause()
        try:
            async with writing(writer) as revisions:
                await more_than(revisions, 0)
            await reaches(mirror, revisions[-1])
        finally:
            member.resume()
            await asyncio.to_thread(member.wait_until, member.healthy)
        await recorder.saw_every_revision(writer)


async def reaches(mirror: Mirror[bytes, Entry], revision: int) -> None:
    await eventually(lambda: mirror.mark >= revision)


@pytest.mark.deadline
async def test_without_a_majority_a_mirror_is_stale_and_reads_fail_in_time(cluster: EtcdCluster):
    async with open_store(cluster.url + "?timeout=2s") as store:
        await store.commit(Put(PREFIX + b"a", b""))
        async with Mirror(RangeFeed(store, prefix(PREFIX))) as mirror:
            for member in cluster.members[:2]:
                member.pause()
            await eventually(lambda: mirror.stale)
            assert len(mirror.items) == 1
            started = time.monotonic()
            with pytest.raises(Exception, match="read of"):
                await store.read(key(PREFIX + b"a"))
            assert time.monotonic() - started < 5
            for member in cluster.members[:2]:
                member.resume()
            await eventually(lambda: not mirror.stale)


@asynccontextmanager
async def behind_peer_proxies(
    folder: Path, series: str
) -> AsyncIterator[tuple[list[EtcdServer], list[FaultProxy]]]:
    """Three members that reach one another only through proxies; clients reach them directly."""
    ports = [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(FaultProxy(f"127.0.0.1:{port}")) for port in ports
        ]
        peers = ",".join(f"m{n}=http://{proxy.address}" for n, proxy in enumerate(proxies))
        members = [
            stack.enter_context(
                EtcdServer(
                    folder / f"m{n}",
                    series=series,
                    name=f"m{n}",
                    peer_port=port,
                    cluster=peers,
                    flags=[f"--initial-advertise-peer-urls=http://{proxies[n].address}"],
                )
            )
            for n, port in enumerate(ports)
        ]
        for member in members:
            member.start(wait=False)
        for member in members:
            await asyncio.to_thread(member.wait_until, member.healthy)
        yield members, proxies


async def is_leader(member: EtcdServer) -> bool:
    async with open_store(member.url) as store:
        return (await store.status()).members[0].leader


@pytest.mark.timeout(120)
@pytest.mark.parametrize("series", ["3.5", pytest.param("3.4", marks=pytest.mark.extended(OLDER))])
@pytest.mark.parametrize("leader", [True, False], ids=["leader", "follower"])
@pytest.mark.deadline
async def test_a_member_cut_off_from_its_peers_makes_a_mirror_stale_in_time(
    tmp_path: Path, leader: bool, series: str
):
    """The member itself answers, its streams stay open, and etcd needs up to 6 s to end them."""
    async with behind_peer_proxies(tmp_path, series) as (members, proxies):
        (alone, *_) = [member for member in members if await is_leader(member) is leader]
        async with open_store(alone.url) as store:
            await store.commit(Put(PREFIX + b"kept", b""))
            async with Mirror(RangeFeed(store, prefix(PREFIX))) as mirror:
                opened = time.monotonic()
                await eventually(lambda: time.monotonic() - mirror.age > opened + 0.5)  # a probe
                for proxy in proxies:
                    proxy.blackhole()
                await eventually(lambda: mirror.stale, within=STALE_WITHIN)
                assert len(mirror.items) == 1, "the last state is kept"
                for proxy in proxies:
                    proxy.heal()
                await eventually(lambda: not mirror.stale)


@pytest.mark.parametrize("overtaken", [False, True], ids=["revision runs back", "overtaken"])
async def test_a_restored_cluster_is_noticed(tmp_path: Path, overtaken: bool):
    """The revision runs backwards, or has even passed that of the mirror: the mirror reads
    again."""
    server = EtcdServer(tmp_path / "etcd", series="3.4")
    with server:
        server.start()
        async with FaultProxy(server.address) as proxy:
            behind, direct = f"etcd://{proxy.address}", server.url
            async with open_store(behind) as store, open_store(direct) as writer:
                await writer.commit(Put(PREFIX + b"both", b""), Put(PREFIX + b"backup", b""))
                backup = tmp_path / "backup"
                server.ctl("snapshot", "save", str(backup))
                await writer.commit(Delete(key(PREFIX + b"backup")))
                for n in range(10):
                    await writer.commit(Put(PREFIX + b"lost%d" % n, b""))
                async with Mirror(RangeFeed(store, prefix(PREFIX))) as mirror:
                    recorder = Recorder(mirror)
                    assert len(mirror.items) == 11
                    proxy.refuse()
                    server.kill()
                    await asyncio.to_thread(restore, server, backup)
                    server.start()
                    await writer.commit(Put(PREFIX + b"after", b""))
                    if overtaken:
                        for _ in range(20):
                            done = await writer.commit(Put(PREFIX + b"after", b"again"))
                        assert done.revision > mirror.mark
                    proxy.heal()
                    await recorder.agrees(writer)
                    names = {name.removeprefix(PREFIX) for name in mirror.items}
                    assert names == {b"both", b"backup", b"after"}
                    assert mirror.resyncs == 1


async def test_a_restored_cluster_is_noticed_although_the_revisions_agree(tmp_path: Path):
    """The same key was written at the same revision, before and after: only its value differs."""
    server = EtcdServer(tmp_path / "etcd", series="3.4")
    with server:
        server.start()
        async with FaultProxy(server.address) as proxy:
            behind, direct = f"etcd://{proxy.address}", server.url
            async with open_store(behind) as store, open_store(direct) as writer:
                await writer.commit(Put(PREFIX + b"old", b""))
                backup = tmp_path / "backup"
                server.ctl("snapshot", "save", str(backup))
                lost = await writer.commit(Put(PREFIX + b"again", b"lost"))
                for n in range(5):
                    await writer.commit(Put(b"/elsewhere/%d" % n, b""))
                async with Mirror(RangeFeed(store, prefix(PREFIX))) as mirror:
                    recorder = Recorder(mirror)
                    proxy.refuse()
                    server.kill()
                    await asyncio.to_thread(restore, server, backup)
                    server.start()
                    again = await writer.commit(Put(PREFIX + b"again", b"new"))
                    assert again.revision == lost.revision, "the same key at the same revision"
                    for n in range(20):
                        done = await writer.commit(Put(b"/elsewhere/%d" % n, b""))
                    assert done.revision > mirror.mark
                    proxy.heal()
                    await recorder.agrees(writer)
                    assert mirror.items[PREFIX + b"again"].value == b"new"


def restore(server: EtcdServer, backup: Path) -> None:
    shutil.rmtree(server.folder / "data")
    peer = f"http://127.0.0.1:{server.peer_port}"
    server.ctl(
        "snapshot",
        "restore",
        str(backup),
        f"--name={server.name}",
        f"--data-dir={server.folder / 'data'}",
        f"--initial-cluster={server.name}={peer}",
        f"--initial-advertise-peer-urls={peer}",
    )


def test_the_binaries_are_not_launchers(tmp_path: Path):
    """A signal must reach etcd itself."""
    with EtcdServer(tmp_path, series="3.5") as server:
        server.start()
        assert server.process is not None
        executable = Path(f"/proc/{server.process.pid}/exe").resolve()
        assert executable == server.program.resolve()
    assert subprocess.run(["kill", "-0", str(server.process.pid)], check=False).returncode
