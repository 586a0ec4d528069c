"""Hprose: real servers, registered, discovered, called and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hprose  # type: ignore[import-untyped]
import pytest
from hprose import HproseException

import mooring
import mooring.hprose
import mooring.sync
from mooring.errors import Closed, InvalidRequest, NoInstance
from mooring.hprose import Client, Server
from mooring.hub import Hub
from mooring.registry.kv.registry import StoreRegistry
from mooring.store import Delete, Put, everything, key
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from mooring.testing.servers import free_port
from tests.backends import usual
from tests.features.hprose_server import HproseServer, RegisteredServer
from tests.waiting import eventually, retried_at_once, until

DOMAIN = "http.hello"
FOLDER = b"hprose-service/http.hello/"


@pytest.fixture(params=usual(["memory"], ["etcd-3.5"], reason="it is the client's own"))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


on_stores = pytest.mark.parametrize("backend", ["memory", "etcd-3.5"])
"""For tests that depend on watches, leases and revisions; the rest belongs to the client."""


@pytest.fixture
async def hub(store_url: str) -> AsyncIterator[Hub]:
    async with mooring.connect(store_url, layout="hprose") as opened:
        yield opened


@pytest.fixture
def serve() -> Iterator[Callable[..., HproseServer]]:
    """Servers in threads."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(HproseServer(**options))


def value(uuid: str, url: str, domain: str = DOMAIN) -> bytes:
    return f'{{"UUID":"{uuid}","Domain":"{domain}","ServerUrl":"{url}","CPU":8}}'.encode()


async def put(hub: Hub, uuid: str, url: str) -> None:
    """Register, or send a heartbeat, like another program."""
    await hub.store.commit(Put(FOLDER + uuid.encode(), value(uuid, url)))


async def known(client: Client, count: int) -> None:
    await eventually(lambda: len(client.servers) == count)


async def busy(client: Client, count: int) -> None:
    """Wait until this number of slow calls is in progress at the primary."""

    async def enough() -> bool:
        return await client.running() == count

    await eventually(enough)


class TestCalls:
    """[H6]"""

    @pytest.mark.parametrize("kind", ["plain", "http", "tcp"])
    async def test_functions_are_called_as_with_the_client_of_hprose(
        self, hub: Hub, serve: Callable[..., HproseServer], kind: str
    ):
        server = serve(kind=kind)
        async with (
            mooring.hprose.register(hub, DOMAIN, server.url),
            mooring.hprose.client(hub, DOMAIN) as remote,
        ):
            assert await remote.hello("世界") == "hello 世界"
            assert await remote.invoke("hello", ["x"]) == "hello x"
            assert await remote.user.get(3) == {"id": 3, "name": "王"}
            raw = await remote.hello("x", resultMode=hprose.ResultMode.RawWithEndTag)
            assert raw == b'Rs7"hello x"z'
            assert await remote.slowly(12, 0.0, byref=True) == 144

    async def test_an_error_of_a_function_is_raised_and_not_retried(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        server = serve()
        await put(hub, "a", server.url)
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            with pytest.raises(HproseException) as raised:
                await remote.fail("不行: it's broken")
            assert str(raised.value) == "不行: it's broken"
            with pytest.raises(HproseException, match=r"Can't find this function missing\(\)"):
                await remote.missing()
            assert await remote.failures() == 1

    async def test_the_http_client_of_hprose_can_be_used(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        one, two = serve(kind="plain"), serve(kind="plain")
        await put(hub, "a", one.url)
        await put(hub, "b", two.url)
        async with mooring.hprose.client(hub, DOMAIN, connect=hprose.HttpClient) as remote:
            assert await remote.hello("x") == "hello x"
            (one if remote.primary == Server("a", one.url) else two).kill()
            assert await remote.hello("y") == "hello y"

    async def test_a_cancelled_call_does_not_affect_others(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        await put(hub, "a", serve().url)
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            call = asyncio.ensure_future(remote.invoke("slowly", [1, 5.0]))
            await busy(remote, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await remote.hello("x") == "hello x"

    async def test_a_closed_client_raises_closed(self, hub: Hub):
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            pass
        with pytest.raises(Closed, match=r"the client of http\.hello is closed"):
            await remote.hello("x")

    @pytest.mark.parametrize("servers", [1, 2])
    async def test_a_call_in_progress_fails_when_the_client_is_closed(
        self, hub: Hub, servers: int, caplog: pytest.LogCaptureFixture
    ):
        for number in range(servers):
            await put(hub, f"{number}", f"http://127.0.0.1:{free_port()}/")
        async with mooring.hprose.client(hub, DOMAIN, pause=60) as remote:
            call = asyncio.ensure_future(remote.invoke("hello", ["x"]))
            await eventually(lambda: "retrying in 60 s" in caplog.text)
        caplog.clear()
        async with asyncio.timeout(20):
            with pytest.raises(Closed, match=r"the client of http\.hello is closed"):
                await call
        assert "calls go to" not in caplog.text

    async def test_private_attributes_are_not_remote_functions(self, hub: Hub):
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            with pytest.raises(AttributeError):
                remote._secret  # noqa: B018


class TestPrimary:
    """[H4]"""

    @on_stores
    async def test_heartbeats_and_other_servers_never_change_the_primary(self, hub: Hub):
        await put(hub, "a", "http://10.0.0.1:1/")
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            primary = remote.primary
            assert primary == Server("a", "http://10.0.0.1:1/")
            for number in range(20):
                await put(hub, f"n{number}", f"http://10.0.0.2:{number + 1}/")
                await put(hub, "a", "http://10.0.0.1:1/")
                assert remote.primary == primary
            await known(remote, 21)
            await hub.store.commit(Delete(key(FOLDER + b"n3")))
            await known(remote, 20)
            assert remote.primary == primary

    @on_stores
    async def test_the_loss_of_the_primary_changes_it(self, hub: Hub):
        for uuid in ("a", "b", "c"):
            await put(hub, uuid, f"http://{uuid}:1/")
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            assert remote.primary is not None
            gone = remote.primary.uuid
            await hub.store.commit(Delete(key(FOLDER + gone.encode())))
            await known(remote, 2)
            assert remote.primary in remote.servers

    @on_stores
    async def test_a_moved_server_is_followed(
        self, hub: Hub, store_url: str, serve: Callable[..., HproseServer]
    ):
        server = serve()
        async with (
            mooring.hprose.register(hub, DOMAIN, "http://127.0.0.1:9/", uuid="u") as former,
            mooring.hprose.client(hub, DOMAIN) as remote,
            mooring.connect(store_url, layout="hprose") as other,
            mooring.hprose.register(other, DOMAIN, server.url, uuid="u"),
        ):
            assert await remote.hello("x") == "hello x"
            await eventually(lambda: remote.primary == Server("u", server.url))
            await eventually(lambda: former.registrations[0].state == "superseded")

    @on_stores
    async def test_a_server_that_moved_unnoticed_is_called_at_once(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        """The list that the client follows lags behind the store."""
        server = serve()
        await put(hub, "u", f"http://127.0.0.1:{free_port()}/")
        async with mooring.hprose.client(hub, DOMAIN, pause=60) as remote:
            await remote._calls._view.aclose()
            await put(hub, "u", server.url)
            assert await remote.hello("x") == "hello x"
            assert remote.primary == Server("u", server.url)


class TestFailover:
    """[H5]"""

    @on_stores
    async def test_killing_one_of_two_servers_loses_no_call(
        self, hub: Hub, serve: Callable[..., HproseServer], caplog: pytest.LogCaptureFixture
    ):
        caplog.set_level("INFO", "mooring.hprose")
        servers = {server.url: server for server in (serve(), serve())}
        async with contextlib.AsyncExitStack() as stack:
            for url in servers:
                await stack.enter_async_context(mooring.hprose.register(hub, DOMAIN, url))
            remote = await stack.enter_async_context(mooring.hprose.client(hub, DOMAIN, pause=60))
            answers: dict[int, object] = {}

            async def call(first: int) -> None:
                for number in range(first, first + 10):
                    answers[number] = await remote.slowly(number, 0.03)

            tasks = [asyncio.ensure_future(call(first)) for first in range(0, 80, 10)]
            await eventually(lambda: len(answers) > 10)
            assert remote.primary is not None
            dead = remote.primary
            servers[dead.url].kill()
            await asyncio.gather(*tasks)
            assert answers == {number: number * number for number in range(80)}
            assert remote.primary is not None
            assert remote.primary.url in servers.keys() - {dead.url}
            assert caplog.text.count("calls go to") == 2, (
                "logged once at first, and once when it died"
            )

    def test_killing_one_of_two_servers_loses_no_call_of_any_thread(
        self, store_url: str, serve: Callable[..., HproseServer]
    ):
        servers = {server.url: server for server in (serve(), serve(kind="tcp"))}
        answers: dict[int, object] = {}
        with contextlib.ExitStack() as stack:
            hub = stack.enter_context(mooring.sync.connect(store_url, layout="hprose"))
            for url in servers:
                stack.enter_context(mooring.hprose.register(hub, DOMAIN, url))
            remote = stack.enter_context(mooring.hprose.client(hub, DOMAIN, pause=60))

            def call(first: int) -> None:
                for number in range(first, first + 10):
                    answers[number] = remote.slowly(number, 0.03)

            threads = stack.enter_context(ThreadPoolExecutor(8))
            calls = [threads.submit(call, first) for first in range(0, 80, 10)]
            until(lambda: len(answers) > 10)
            assert remote.primary is not None
            servers[remote.primary.url].kill()
            for done in calls:
                done.result()
        assert answers == {number: number * number for number in range(80)}

    async def test_a_silent_server_is_left_after_the_timeout(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            await put(hub, "a", f"http://127.0.0.1:{silent.getsockname()[1]}/")
            async with mooring.hprose.client(hub, DOMAIN, timeout=0.5, pause=60) as remote:
                server = serve()
                await put(hub, "b", server.url)
                await known(remote, 2)
                assert remote.primary != Server("b", server.url)
                assert await remote.hello("x") == "hello x"
                assert remote.primary == Server("b", server.url)

    async def test_the_only_server_is_retried_after_a_pause(
        self, hub: Hub, serve: Callable[..., HproseServer], caplog: pytest.LogCaptureFixture
    ):
        port = free_port()
        await put(hub, "a", f"http://127.0.0.1:{port}/")
        async with mooring.hprose.client(hub, DOMAIN, pause=0.2, tries=100) as remote:
            call = asyncio.ensure_future(remote.invoke("hello", ["x"]))
            await eventually(lambda: "retrying in 0.2 s" in caplog.text)
            await asyncio.to_thread(serve, port=port)
            assert await call == "hello x"

    async def test_a_new_server_ends_the_pause(
        self, hub: Hub, serve: Callable[..., HproseServer], caplog: pytest.LogCaptureFixture
    ):
        server = serve()
        await put(hub, "a", f"http://127.0.0.1:{free_port()}/")
        async with mooring.hprose.client(hub, DOMAIN, pause=60) as remote:
            call = asyncio.ensure_future(remote.invoke("hello", ["x"]))
            await eventually(lambda: "retrying in 60 s" in caplog.text)
            await put(hub, "b", server.url)
            assert await asyncio.wait_for(call, 20) == "hello x"

    @on_stores
    @pytest.mark.parametrize("back", ["none", "the one that fails"])
    async def test_a_server_whose_record_vanished_is_called_when_another_fails(
        self,
        hub: Hub,
        serve: Callable[..., HproseServer],
        back: str,
        caplog: pytest.LogCaptureFixture,
    ):
        """The list that is read after a failure contains fewer servers than are alive."""
        server, dead = serve(), f"http://127.0.0.1:{free_port()}/"
        await put(hub, "a", dead)
        async with mooring.hprose.client(hub, DOMAIN, pause=60) as remote:
            await put(hub, "b", server.url)
            await known(remote, 2)
            await hub.store.commit(Delete(everything()))
            if back != "none":
                await eventually(lambda: "without deregistering" in caplog.text)
                await put(hub, "a", dead)
            assert remote.primary == Server("a", dead)
            assert await asyncio.wait_for(remote.invoke("hello", ["x"]), 20) == "hello x"
            assert len(remote.servers) == 2

    @on_stores
    async def test_a_server_that_left_is_not_revived_by_a_later_list(self, hub: Hub):
        """The list is read at a later revision than that of the next change that the client
        receives."""
        await put(hub, "a", "http://10.0.0.1:1/")
        await put(hub, "b", "http://10.0.0.1:2/")
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            await hub.store.commit(Delete(key(FOLDER + b"b")))
            await hub.store.commit(Put(b"/other", b""))
            await remote._calls._read(time.monotonic())
            await known(remote, 1)

    async def test_the_number_of_tries_is_limited(self, hub: Hub):
        with refusing() as (port, count):
            await put(hub, "a", f"http://127.0.0.1:{port}/")
            async with mooring.hprose.client(hub, DOMAIN, pause=0.01) as remote:
                with pytest.raises(ConnectionError) as raised:
                    await remote.hello("x")
                assert raised.value.__notes__ == ["http.hello: hello failed 10 times"]
                assert count() == 10

    async def test_a_client_can_limit_calls_to_one_try(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        await put(hub, "a", serve().url)
        async with mooring.hprose.client(hub, DOMAIN, tries=1) as remote:
            with refusing() as (port, count):
                await put(hub, "a", f"http://127.0.0.1:{port}/")
                await eventually(
                    lambda: remote.primary is not None and str(port) in remote.primary.url
                )
                with pytest.raises(ConnectionError):
                    await remote.hello("x")
                assert count() == 1

    async def test_concurrent_failures_read_the_list_once_or_twice(
        self, hub: Hub, serve: Callable[..., HproseServer], monkeypatch: pytest.MonkeyPatch
    ):
        server, reads, failures = serve(), 0, 0
        await put(hub, "a", f"http://127.0.0.1:{free_port()}/")
        plain = hub.registry.instances
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            go_on = remote._calls._next

            async def counted(service: str) -> object:
                nonlocal reads
                reads += 1
                await eventually(lambda: failures == 30)
                return await plain(service)

            async def failed(*arguments: Any) -> Server:
                nonlocal failures
                failures += 1
                return await go_on(*arguments)

            monkeypatch.setattr(hub.registry, "instances", counted)
            monkeypatch.setattr(remote._calls, "_next", failed)
            calls = [asyncio.ensure_future(remote.invoke("hello", ["x"])) for _ in range(30)]
            await put(hub, "b", server.url)
            assert set(await asyncio.gather(*calls)) == {"hello x"}
        assert 1 <= reads <= 2


@contextlib.contextmanager
def refusing() -> Iterator[tuple[int, Callable[[], int]]]:
    """A port that closes each connection at once, and counts them."""
    count = 0
    stop = threading.Event()

    def serve() -> None:
        nonlocal count
        while True:
            connection, _ = listener.accept()
            if stop.is_set():
                return connection.close()
            count += 1
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], lambda: count
        finally:
            stop.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


class TestNoServer:
    """[H5]"""

    async def test_no_server_is_a_clear_error(self, hub: Hub):
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            assert remote.primary is None
            with pytest.raises(NoInstance, match=r"no server of http\.hello is registered"):
                await remote.hello("x")

    async def test_retrying_without_a_pause_does_not_starve_the_loop(self, hub: Hub):
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            await retried_at_once(lambda: remote.invoke("hello", ["x"]), NoInstance)
            others: list[str] = []
            asyncio.get_running_loop().call_soon(others.append, "had a turn")
            with pytest.raises(NoInstance):
                await remote.invoke("hello", ["x"])
            assert others

    async def test_a_server_that_registers_later_is_called(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            with pytest.raises(NoInstance):
                await remote.hello("x")
            await put(hub, "a", serve().url)
            assert await remote.hello("x") == "hello x"

    async def test_the_error_without_a_server_names_the_last_failure(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        server = serve()
        async with mooring.hprose.client(hub, DOMAIN, pause=0.1) as remote:
            async with mooring.hprose.register(hub, DOMAIN, server.url):
                assert await remote.hello("x") == "hello x"
                call = asyncio.ensure_future(remote.invoke("slowly", [1, 30]))
                await busy(remote, 1)
            server.kill()
            with pytest.raises(NoInstance, match=r"no server of http\.hello") as raised:
                await call
            assert isinstance(raised.value.__cause__, ConnectionError)

    async def test_a_server_with_an_unsupported_url_is_skipped_and_reported(
        self, hub: Hub, serve: Callable[..., HproseServer], caplog: pytest.LogCaptureFixture
    ):
        await put(hub, "w", "ws://10.0.0.1:8080/")
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            with pytest.raises(NoInstance, match=r"ws://10\.0\.0\.1:8080/ cannot be called"):
                await remote.hello("x")
            await put(hub, "a", serve().url)
            assert await remote.hello("x") == "hello x"
        assert caplog.text.count("ignoring a server: ws://10.0.0.1:8080/") == 1


class TestKeys:
    """[H1]"""

    @on_stores
    async def test_both_forms_of_the_key_are_read(
        self, hub: Hub, serve: Callable[..., HproseServer]
    ):
        await hub.store.commit(Put(b"/" + FOLDER + b"a", value("a", serve().url)))
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            assert await remote.hello("x") == "hello x"

    async def test_a_domain_never_matches_a_longer_one(self, hub: Hub):
        async with (
            mooring.hprose.client(hub, "tcp.hello") as remote,
            mooring.hprose.register(hub, "tcp.hello2", "tcp://10.0.0.1:1/"),
        ):
            last = await hub.store.commit(
                Put(b"hprose-service/tcp.hello/a", value("a", "tcp://10.0.0.2:1/", "tcp.hello"))
            )
            await eventually(lambda: remote._calls._view.seen.mark >= last.revision)
            assert [server.uuid for server in remote.servers] == ["a"]

    @on_stores
    async def test_invalid_records_are_skipped_and_reported(
        self, hub: Hub, serve: Callable[..., HproseServer], caplog: pytest.LogCaptureFixture
    ):
        rubbish = {
            b"1": b"no JSON",
            b"2": b"[]",
            b"3": b'{"ServerUrl":"udp://10.0.0.1:1/"}',
            b"4": b'{"ServerUrl":"http://0.0.0.0:1/"}',
            b"5": b'{"ServerUrl":"tcp://10.0.0.1/"}',
            b"6": b'{"ServerUrl":"http://:80/"}',
            b"7": b'{"ServerUrl":7}',
            b"8": b'{"ServerUrl":"http://10.0.0.1:99999/"}',
            b"9": b"{}",
            b"10": b'{"ServerUrl":"http://10.0.0.1:1/","CPU":"many"}',
            b"11/x": b"",
            b"\xff": b"",
        }
        await hub.store.commit(*(Put(FOLDER + name, what) for name, what in rubbish.items()))
        await put(hub, "good", serve().url)
        async with mooring.hprose.client(hub, DOMAIN) as remote:
            assert await remote.hello("x") == "hello x"
            assert [server.uuid for server in remote.servers] == ["good"]
        problems = (await hub.registry.instances(DOMAIN)).problems
        assert {problem.key for problem in problems} == {FOLDER + name for name in rubbish}
        assert "left out: hprose-service/http.hello/1: is not valid JSON" in caplog.text


class TestRegister:
    """[H2] [H3]"""

    @on_stores
    async def test_the_record_is_that_of_the_documentation(self, hub: Hub):
        async with mooring.hprose.register(hub, "tcp.hello", "tcp4://169.254.128.35:4321") as mine:
            (entry,) = (await hub.store.read(everything())).entries
            cpus = os.cpu_count()
            assert entry.key == f"hprose-service/tcp.hello/{mine.uuid}".encode()
            assert (
                entry.value
                == (
                    f'{{"UUID":"{mine.uuid}","Domain":"tcp.hello",'
                    f'"ServerUrl":"tcp4://169.254.128.35:4321/","CPU":{cpus}}}'
                ).encode()
            )
            assert await hub.store.renew(entry.lease) == 10

    @on_stores
    async def test_several_domains_share_a_uuid_and_a_lease(self, hub: Hub):
        url = "http://10.0.0.1:8080/api?v=1"
        async with mooring.hprose.register(hub, ["a", "b", "a"], url) as mine:
            entries = (await hub.store.read(everything())).entries
            names = [entry.key for entry in entries]
            assert names == [f"hprose-service/{d}/{mine.uuid}".encode() for d in ("a", "b")]
            (lease,) = {entry.lease for entry in entries}
            async with mooring.hprose.client(hub, "b") as remote:
                assert remote.primary == Server(mine.uuid, url)
        assert not (await hub.store.read(everything())).entries
        with pytest.raises(mooring.errors.LeaseNotFound):
            await hub.store.renew(lease)

    async def test_a_path_in_the_url_is_not_reported_as_lost(
        self, hub: Hub, caplog: pytest.LogCaptureFixture
    ):
        async with mooring.hprose.register(hub, "a", "http://10.0.0.1:8080/api"):
            assert "cannot hold" not in caplog.text

    async def test_a_missing_host_is_determined(self, hub: Hub):
        async with mooring.hprose.register(hub, "a", "http://:8080/") as mine:
            assert mine.registrations[0].instance.host

    @on_stores
    @pytest.mark.parametrize("beside", ["", "memory://beside"])
    async def test_the_heartbeat_interval_is_configurable(
        self, store_url: str, beside: str, monkeypatch: pytest.MonkeyPatch
    ):
        urls = (beside, store_url) if beside else (store_url, "")
        async with mooring.connect(urls[0], registry=urls[1], layout="hprose") as hub:
            assert isinstance(hub.registry, StoreRegistry)
            renewals: list[float] = []
            store = hub.registry.store
            plain = store.renew

            async def noted(lease: int) -> float:
                renewals.append(time.monotonic())
                return await plain(lease)

            monkeypatch.setattr(store, "renew", noted)
            async with mooring.hprose.register(hub, "a", "http://10.0.0.1:1/", heartbeat=0.1):
                await eventually(lambda: len(renewals) >= 10)  # the default is 3 s

    @on_stores
    async def test_a_record_taken_over_by_another_gets_no_heartbeat(
        self, hub: Hub, store_url: str, monkeypatch: pytest.MonkeyPatch
    ):
        async with (
            mooring.connect(store_url, layout="hprose") as other,
            mooring.hprose.register(
                hub, "a", "http://10.0.0.1:1/", uuid="u", heartbeat=0.1
            ) as former,
            mooring.hprose.register(other, "a", "http://10.0.0.2:1/", uuid="u"),
        ):
            await eventually(lambda: former.registrations[0].state == "superseded")
            entry = (await hub.store.read(key(b"hprose-service/a/u"))).first
            assert entry is not None
            renewed: list[int] = []
            plain = hub.store.renew

            async def noted(lease: int) -> float:
                renewed.append(lease)
                return await plain(lease)

            monkeypatch.setattr(hub.store, "renew", noted)
            await asyncio.sleep(0.5)
            assert entry.lease not in renewed

    @pytest.mark.parametrize(
        "url",
        [
            "udp://10.0.0.1:1/",
            "10.0.0.1:1",
            "",
            "tcp://10.0.0.1/",
            "http://me:secret@10.0.0.1:1/",
            "http://10.0.0.1:1/#part",
        ],
    )
    async def test_an_invalid_url_is_refused(self, hub: Hub, url: str):
        before = (await hub.store.read(everything())).entries
        with pytest.raises(InvalidRequest) as refused:
            mooring.hprose.register(hub, "a", url)
        assert "secret" not in str(refused.value)
        assert (await hub.store.read(everything())).entries == before

    async def test_invalid_arguments_are_refused(self, hub: Hub, store_url: str):
        with pytest.raises(InvalidRequest, match="must be shorter"):
            mooring.hprose.register(hub, "a", "http://10.0.0.1:1/", ttl=3)
        with pytest.raises(InvalidRequest, match="no domain"):
            mooring.hprose.register(hub, [], "http://10.0.0.1:1/")
        with pytest.raises(InvalidRequest, match="must be at least 1"):
            mooring.hprose.client(hub, "a", tries=0)
        with pytest.raises(InvalidRequest, match="layout='hprose'"):
            async with (
                mooring.connect(store_url) as tree,
                mooring.hprose.register(tree, "a", "http://10.0.0.1:1/"),
            ):
                pass


class TestOnEtcd:
    @pytest.fixture
    def backend(self) -> str:
        return "etcd-3.5"

    async def test_an_unavailable_store_leaves_the_last_list(
        self,
        etcd: Callable[[str], EtcdServer],
        serve: Callable[..., HproseServer],
        hub: Hub,
        store_url: str,
    ):
        servers = {server.url: server for server in (serve(), serve())}
        for url in servers:
            await put(hub, url[-5:-1], url)
        address = etcd("3.5").address
        async with FaultProxy(address) as proxy:
            through = store_url.replace(address, proxy.address) + "&timeout=1s"
            async with (
                mooring.connect(through, layout="hprose") as behind,
                mooring.hprose.client(behind, DOMAIN, pause=60) as remote,
            ):
                proxy.refuse()
                assert await remote.hello("x") == "hello x"
                assert remote.primary is not None
                servers[remote.primary.url].kill()
                assert await remote.hello("y") == "hello y"
                proxy.heal()

    async def test_the_only_server_is_retried_while_the_store_is_unavailable(
        self,
        etcd: Callable[[str], EtcdServer],
        serve: Callable[..., HproseServer],
        hub: Hub,
        store_url: str,
        caplog: pytest.LogCaptureFixture,
    ):
        port, address = free_port(), etcd("3.5").address
        await put(hub, "a", f"http://127.0.0.1:{port}/")
        async with FaultProxy(address) as proxy:
            through = store_url.replace(address, proxy.address) + "&timeout=1s"
            async with (
                mooring.connect(through, layout="hprose") as behind,
                mooring.hprose.client(behind, DOMAIN, pause=0.2, tries=100) as remote,
            ):
                proxy.refuse()
                call = asyncio.ensure_future(remote.invoke("hello", ["x"]))
                await eventually(lambda: "retrying in 0.2 s" in caplog.text)
                await asyncio.to_thread(serve, port=port)
                assert await call == "hello x"
                proxy.heal()

    @pytest.mark.deadline
    async def test_an_unavailable_store_does_not_delay_a_server(
        self, etcd: Callable[[str], EtcdServer], hub: Hub, store_url: str
    ):
        address = etcd("3.5").address
        async with FaultProxy(address) as proxy:
            proxy.refuse()
            through = store_url.replace(address, proxy.address) + "&timeout=1s"
            began = time.monotonic()
            async with (
                mooring.connect(through, layout="hprose") as behind,
                mooring.hprose.register(
                    behind, ["a", "b", "c"], "http://10.0.0.1:1/", wait=0.5, heartbeat=0.2
                ) as mine,
            ):
                assert time.monotonic() - began < 3, "all domains wait together"
                proxy.heal()
                for registration in mine.registrations:
                    await asyncio.wait_for(registration.registered(), 20)
                assert len((await hub.store.read(everything())).entries) == 3

    async def test_a_killed_server_is_removed_after_its_ttl_and_no_call_is_lost(
        self, hub: Hub, store_url: str, serve: Callable[..., HproseServer]
    ):
        flags = [f"--store={store_url}", "--ttl=4", f"--domain={DOMAIN}", "--domain=other"]
        domains = [DOMAIN, "other"]
        with RegisteredServer(*flags) as dead:
            async with (
                mooring.hprose.client(hub, DOMAIN, pause=60) as remote,
                mooring.hprose.register(hub, domains, serve().url),
            ):
                await known(remote, 2)
                assert remote.primary is not None
                assert remote.primary.url == dead.url
                calls = [asyncio.ensure_future(remote.invoke("slowly", [n, 1.0])) for n in range(8)]
                await busy(remote, 8)
                dead.kill()
                assert await asyncio.gather(*calls) == [n * n for n in range(8)]
                await known(remote, 1)
                assert len((await hub.registry.instances("other")).instances) == 1
