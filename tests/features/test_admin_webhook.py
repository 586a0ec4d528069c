"""Notices to a webhook: lasting problems once, and their end, without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import re
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import mooring
from mooring.errors import StoreError
from mooring.registry.redis.registry import RedisRegistry
from mooring.server import alerts as alerts_module
from mooring.server.alerts import NOTICES, Alerts, NotifierElection, RedisElection, StoreElection
from mooring.server.live.problems import CurrentProblems, FleetProblem
from mooring.server.live.state import Fleet
from mooring.server.settings import AlertSettings
from mooring.store import Delete, Put, prefix
from tests.unit.test_fleet_problems import Seen
from tests.waiting import PATIENCE, eventually


class Receiver(http.server.ThreadingHTTPServer):
    """A webhook that answers with `status`, and keeps the notices."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.answers = threading.Event()
        self.answers.set()
        self.notices: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    @property
    def problems(self) -> list[tuple[str, ...]]:
        """The problems of the notices, in order: their state and their keys."""
        return [
            (which, *(event["key"] for event in notice[which]))
            for notice in self.notices
            for which in ("firing", "resolved")
            if notice[which]
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.notices.append(msgspec.json.decode(body))
        self.server.headers.append(dict(self.headers))
        self.server.paths.append(self.path)
        self.server.answers.wait()
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    server = Receiver()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sent() -> float:
    """Notices that were answered and counted by the server that sent them."""
    count: float = NOTICES.labels("sent")._value.get()
    return count


class SettableProblems(CurrentProblems):
    """The current problems, as the test sets them."""

    def __init__(self) -> None:
        super().__init__(cast(Fleet, Seen()))
        self.now: list[FleetProblem] = []

    def problems(self) -> list[FleetProblem]:
        self.updated_at = time.monotonic()
        return self.now


def problem(service: str, severity: Any = "critical") -> FleetProblem:
    text = f"{service} has no instance"
    return FleetProblem(
        f"no_instances:{service}", severity, "no_instances", service, "", None, text, ""
    )


class Alone(NotifierElection):
    """The election of a server without others beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._elected = True
        self._left = b""
        self.away = False

    async def _run(self) -> None: ...

    async def confirm(self) -> bool:
        return self.elected

    async def load_reported(self) -> bytes:
        return self._left

    async def save_reported(self, reported: bytes) -> None:
        if self.away:
            raise StoreError("the store is away")
        self._left = reported


def alerts(
    wrong: CurrentProblems, url: str, duty: NotifierElection | None = None, **settings: Any
) -> Alerts:
    alert_settings = AlertSettings(webhook=url, after=0.05, **settings)
    return Alerts(wrong, alert_settings, duty or Alone())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_module, "INTERVAL", 0.02)
    monkeypatch.setattr(alerts_module, "_FIRST_RETRY", 0.05)
    monkeypatch.setattr(alerts_module, "_MAX_RETRY", 0.1)


async def test_a_lasting_problem_and_its_end_are_sent_once():
    wrong = SettableProblems()
    with receiving() as receiver:
        async with alerts(wrong, f"http://127.0.0.1:{receiver.server_port}/hook?x=1"):
            wrong.now = [problem("orders"), problem("quiet", "info")]
            await eventually(lambda: len(receiver.notices) == 1)
            wrong.now = [problem("orders"), problem("cart")]
            await eventually(lambda: len(receiver.notices) == 2)
            wrong.now = [problem("cart")]
            await eventually(lambda: len(receiver.notices) == 3)
    assert receiver.problems == [
        ("firing", "no_instances:orders"),
        ("firing", "no_instances:cart"),
        ("resolved", "no_instances:orders"),
    ]
    assert receiver.notices[0]["firing"][0]["text"] == "orders has no instance"
    assert set(receiver.notices[0]) == {"source", "time", "firing", "resolved"}
    assert re.fullmatch(r"\S+T\d\d:\d\d:\d\d[.]\d{3}Z", receiver.notices[0]["time"])
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert receiver.paths == ["/hook?x=1"] * 3


async def test_a_problem_does_not_last_because_it_is_reported_from_the_cache():
    asked, clock = 0, 0.0

    def problems_asked_for() -> float:
        nonlocal asked
        asked += 1
        return clock

    fleet = Seen(stale=True)
    with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.server_port}/"
        async with alerts(CurrentProblems(cast(Fleet, fleet), clock=problems_asked_for), url):
            await eventually(lambda: asked >= 10)
            fleet.stale, clock = False, 1.0
            await eventually(lambda: asked >= 20)
    assert receiver.notices == []


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_a_refused_notice_is_sent_again(status: int, caplog: pytest.LogCaptureFixture):
    wrong = SettableProblems()
    wrong.now = [problem("orders")]
    with receiving() as receiver:
        receiver.status = status
        url = f"http://127.0.0.1:{receiver.server_port}/a-secret-path"
        with caplog.at_level("INFO", "mooring.server.alerts"):
            async with alerts(wrong, url):
                await eventually(lambda: len(receiver.notices) >= 3)
                receiver.status = 200
                await eventually(lambda: "accepts alerts again" in caplog.text)
    assert caplog.text.count(f"it answered {status}") == 1
    assert "a-secret-path" not in caplog.text
    assert {listed[0] for listed in receiver.problems} == {"firing"}
    assert set(receiver.paths) == {"/a-secret-path"}  # a redirect is not followed


async def test_a_webhook_gets_the_current_problems_after_an_outage(
    caplog: pytest.LogCaptureFixture,
):
    wrong = SettableProblems()
    with receiving() as receiver:
        receiver.status = 503
        async with alerts(wrong, f"http://127.0.0.1:{receiver.server_port}/"):
            wrong.now = [problem("orders")]
            await eventually(lambda: len(receiver.notices) >= 1)
            wrong.now = [problem("cart")]
            await eventually(lambda: receiver.problems[-1] == ("firing", "no_instances:cart"))
            receiver.status = 200
            receiver.notices.clear()
            await eventually(lambda: bool(receiver.notices))
    assert receiver.problems == [("firing", "no_instances:cart")]


async def test_the_certificate_of_a_webhook_is_verified(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    token = tmp_path / "token"
    token.write_text("a-token\n")
    wrong = SettableProblems()
    wrong.now = [problem("orders")]
    with receiving(context) as receiver:
        url = f"https://127.0.0.1:{receiver.server_port}/"
        async with alerts(wrong, url, ca=str(certificates / "other-ca.pem")):
            await eventually(lambda: "its certificate is not trusted" in caplog.text)
        assert receiver.notices == []
        trusted = str(certificates / "ca.pem")
        async with alerts(wrong, url, ca=trusted, token_file=str(token)):
            await eventually(lambda: bool(receiver.notices))
    assert receiver.headers[0]["Authorization"] == "Bearer a-token"
    assert "a-token" not in caplog.text


async def test_closing_waits_for_no_webhook():
    wrong = SettableProblems()
    wrong.now = [problem("orders")]
    with receiving() as receiver:
        receiver.answers.clear()
        url = f"http://127.0.0.1:{receiver.server_port}/"
        try:
            async with asyncio.timeout(PATIENCE), alerts(wrong, url, timeout=10 * PATIENCE):
                await eventually(lambda: bool(receiver.notices))
        finally:
            receiver.answers.set()


@contextlib.asynccontextmanager
async def alerting(
    url: str, wrong: CurrentProblems, hook: str, *, ttl: float = 6.0
) -> AsyncIterator[NotifierElection]:
    """A server with a separate hub, as in a separate process."""
    async with mooring.connect(url) as hub:
        duty: NotifierElection = (
            RedisElection(cast(RedisRegistry, hub.registry).leader_lease, ttl=ttl)
            if url.startswith("redis")
            else StoreElection(hub, ttl=ttl)
        )
        async with duty, alerts(wrong, hook, duty):
            yield duty


class TestSeveralServers:
    @pytest.fixture(params=["sqlite", "etcd-3.5", "redis-7.0", "redis-cluster"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    async def test_one_server_sends_notices_and_the_next_continues(self, store_url: str):
        wrong, before = SettableProblems(), sent()
        wrong.now = [problem("orders"), problem("cart")]
        with receiving() as receiver:
            hook = f"http://127.0.0.1:{receiver.server_port}/"
            async with contextlib.AsyncExitStack() as others:
                async with alerting(store_url, wrong, hook) as first:
                    await eventually(lambda: first.elected and len(receiver.notices) == 1)
                    second, third = [
                        await others.enter_async_context(alerting(store_url, wrong, hook))
                        for _ in range(2)
                    ]
                    wrong.now = [problem("orders"), problem("cart"), problem("stock")]
                    await _left(first, b"stock")
                    assert [first.elected, second.elected, third.elected] == [True, False, False]
                await eventually(lambda: second.elected or third.elected)
                wrong.now = [problem("orders"), problem("stock"), problem("mail")]
                firing = ("firing", "no_instances:mail")
                await eventually(lambda: len(receiver.problems) >= 4)
                await eventually(lambda: sent() - before == len(receiver.notices))
                assert second.elected is not third.elected
        assert [set(listed[1:]) for listed in receiver.problems[:2]] == [
            {"no_instances:orders", "no_instances:cart"},
            {"no_instances:stock"},
        ]
        assert sorted(receiver.problems[2:]) == [firing, ("resolved", "no_instances:cart")]

    async def test_a_restart_sends_no_notice_again(self, store_url: str):
        wrong = SettableProblems()
        wrong.now = [problem("orders"), problem("cart")]
        with receiving() as receiver:
            hook = f"http://127.0.0.1:{receiver.server_port}/"
            async with alerting(store_url, wrong, hook) as duty:
                await _left(duty, b"cart")
            wrong.now = [problem("orders")]
            async with alerting(store_url, wrong, hook):
                await eventually(lambda: len(receiver.notices) == 2)
        assert receiver.problems[1:] == [("resolved", "no_instances:cart")]

    async def test_a_server_that_unknowingly_lost_the_duty_overwrites_nothing(self, store_url: str):
        async with mooring.connect(store_url) as hub:
            if store_url.startswith("redis"):
                lease = cast(RedisRegistry, hub.registry).leader_lease
                async with RedisElection(lease, ttl=60.0) as before:
                    await eventually(lambda: before.elected)
                    assert not await lease.lead("another", 2.0)
                    await before.save_reported(b"new")
                    former = RedisElection(lease)
                    with pytest.raises(StoreError, match="another server is elected"):
                        await former.save_reported(b"old")
                    assert await former.load_reported() == b"new"
                assert await lease.lead("another", 2.0), "it resigns when it stops"
                return
            async with StoreElection(hub, ttl=60.0) as duty:
                await eventually(lambda: duty.elected)
                await duty.save_reported(b"new")
                leadership = duty._leadership
                assert leadership is not None
                await hub.store.commit(Delete(prefix(b"/mooring/alerts/leader/")))
                await eventually(leadership.lost.is_set)
                duty._leadership = leadership
                with pytest.raises(StoreError, match="another server is elected"):
                    await duty.save_reported(b"old")
                assert await duty.load_reported() == b"new"


async def test_a_server_that_regains_the_duty_continues_from_the_report_of_another():
    wrong, duty = SettableProblems(), Alone()
    with receiving() as receiver:
        async with alerts(wrong, f"http://127.0.0.1:{receiver.server_port}/", duty) as server:
            wrong.now = [problem("orders")]
            await _left(duty, b"orders")
            duty.term, duty._left, wrong.now = duty.term + 1, b"[]", []
            await eventually(lambda: not server._state.reported())
            wrong.now = [problem("cart")]
            await eventually(lambda: len(receiver.notices) == 2)
    assert receiver.problems == [("firing", "no_instances:orders"), ("firing", "no_instances:cart")]


class Confirming(StoreElection):
    """Records the results of `confirm`."""

    def __init__(self, hub: mooring.Hub, *, ttl: float) -> None:
        super().__init__(hub, ttl=ttl)
        self.confirmed: list[bool] = []

    async def confirm(self) -> bool:
        self.confirmed.append(await super().confirm())
        return self.confirmed[-1]


@pytest.mark.parametrize("backend", ["sqlite", "etcd-3.5"])
async def test_after_an_outage_a_server_reports_nothing_until_the_election_is_over(store_url: str):
    """Its key from before the outage still leads, and another server stands before its new one."""
    async with mooring.connect(store_url) as hub, mooring.connect(store_url) as other_hub:
        duty = Confirming(hub, ttl=60.0)
        duty._elected = True
        old, other = (elector.election(alerts_module._ELECTION) for elector in (hub, other_hub))
        reported = msgspec.json.encode([problem("orders")])
        await hub.store.commit(Put(alerts_module._REPORTED, reported))

        async def standing(count: int) -> None:
            async def stand() -> bool:
                snapshot = await hub.store.read(prefix(b"/mooring/alerts/leader/"))
                return len(snapshot.entries) == count

            await eventually(stand)

        done = asyncio.Event()

        async def lead_until_done() -> None:
            async with other.campaign("another server"):
                await done.wait()

        with receiving() as receiver:
            hook = f"http://127.0.0.1:{receiver.server_port}/"
            async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
                async with old.campaign(duty._id):
                    tasks.create_task(lead_until_done())
                    await standing(2)
                    await stack.enter_async_context(duty)
                    await stack.enter_async_context(alerts(SettableProblems(), hook, duty))
                    await standing(3)
                    await eventually(lambda: len(duty.confirmed) >= 3)
                    assert (duty.elected, receiver.notices) == (True, [])
                await eventually(lambda: not duty.elected)
                done.set()
                await eventually(lambda: bool(receiver.notices))
    assert receiver.problems == [("resolved", "no_instances:orders")]


async def _left(duty: NotifierElection, text: bytes) -> None:
    """Wait until the successor of a server would know the sent notices."""

    async def is_known() -> bool:
        return text in await duty.load_reported()

    await eventually(is_known)


@pytest.mark.parametrize("regains", [False, True])
async def test_a_server_that_reported_during_an_outage_reports_the_end(regains: bool):
    """The server that takes over the duty knows only what is stored."""
    wrong, duty = SettableProblems(), Alone()
    with receiving() as receiver:
        async with alerts(wrong, f"http://127.0.0.1:{receiver.server_port}/", duty) as server:
            wrong.now = [problem("orders")]
            await _left(duty, b"orders")
            duty.away = True
            wrong.now = [problem("orders"), problem("store")]
            await eventually(lambda: "no_instances:store" in server._state._reported)
            duty.away, duty._elected = False, False
            await eventually(lambda: not server._was_elected)
            if regains:
                duty._elected = True
                await _left(duty, b"store")
            wrong.now = []
            await eventually(lambda: len(receiver.notices) == 3)
    assert receiver.problems == [
        ("firing", "no_instances:orders"),
        ("firing", "no_instances:store"),
        ("resolved", *(["no_instances:orders"] if regains else []), "no_instances:store"),
    ]


async def test_a_server_that_never_reached_the_store_sends_notices():
    wrong = SettableProblems()
    wrong.now = [problem("store")]
    with receiving() as receiver:
        hook = f"http://127.0.0.1:{receiver.server_port}/"
        async with alerting("etcd://127.0.0.1:1?timeout=200ms", wrong, hook):
            await eventually(lambda: len(receiver.notices) == 1)
