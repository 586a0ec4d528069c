"""Several `mooring serve` on one etcd or one Redis: changes through one apply to all, and none of
them is indispensable."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import mooring
from mooring.registry.redis.registry import RedisRegistry
from mooring.server.alerts import RedisElection, StoreElection
from tests.acceptance.serving import Served
from tests.features.test_admin_webhook import receiving
from tests.waiting import eventually, until

PATIENCE = 60.0
BEAT = 0.2
"""Seconds between the heartbeats of a live instance."""
DOCUMENT = {"meta": {"code": "acme", "name": "Acme"}}


class Service:
    """The paths of a service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instances = f"/registry/services/{name.replace('/', '%2F')}/instances"
        self.admin = f"/admin{self.instances.removesuffix('/instances')}"


class Server:
    """One of several servers."""

    def __init__(self, store: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self._served = Served(store, "--etcd=off", *arguments, folder=folder)
        self._served.environment["MOORING_SERVER_KEY"] = "a key of all of them, long enough"
        self._stack = contextlib.ExitStack()
        self.use(Service("Shop/Cart"))

    def use(self, service: Service) -> None:
        """Select the service of the calls below."""
        self.service = service

    def start(self) -> None:
        self._stack.enter_context(self._served)
        self.client = self._stack.enter_context(
            httpx.Client(
                base_url=f"http://{self._served.http}",
                headers={"Authorization": f"Bearer {self._served.admin_token}"},
                timeout=PATIENCE,
                trust_env=False,
            )
        )

        self.origin = f"http://{self._served.http}"
        self.browser = self._stack.enter_context(httpx.Client(timeout=PATIENCE, trust_env=False))

    def kill(self) -> None:
        self._served.signal(signal.SIGKILL)
        self._served.end()
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def calls_the_webhook(self) -> bool:
        return "this server calls the webhook" in self._served.logged()

    @property
    def runs(self) -> bool:
        return self._served.process.poll() is None

    @property
    def data(self) -> Path:
        return self._served.data

    def get(self, path: str, status: int = 200) -> Any:
        return self.ask("GET", path, status=status)

    def ask(self, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def register(self, host: str = "10.0.0.1", *, status: int = 201, **more: Any) -> Any:
        body = {"host": host, "port": 80, "ttl": "1h", **more}
        return self.ask("POST", self.service.instances, body, status=status)

    def beat(self, made: Any, *, status: int = 200) -> Any:
        body = {"incarnation": made["incarnation"]}
        return self.ask("PUT", f"{self.service.instances}/{made['id']}/beat", body, status=status)

    def called(self) -> list[str]:
        """The callable instances according to this server."""
        return [instance["id"] for instance in self.get(self.service.instances)]

    def link(self) -> str:
        """The path of a link that logs in as the admin of this server."""
        url: str = self.ask("POST", "/admin/login-codes", status=201)["url"]
        return url.partition(self._served.http)[2]

    def login(self, link: str) -> None:
        answer = self.browser.post(f"{self.origin}{link}", headers={"Origin": self.origin})
        assert answer.status_code == 303, answer.text
        again = self.browser.post(f"{self.origin}{link}", headers={"Origin": self.origin})
        assert again.status_code == 401, "a link is good once"

    def logged_in(self, browser: httpx.Client) -> int:
        """The status for a browser that logged in at another server behind the same name."""
        return browser.get(f"{self.origin}/admin/whoami").status_code

    def registered(self) -> list[str]:
        answer = self.client.get(f"{self.service.admin}/instances")
        return [instance["instanceId"] for instance in answer.json()] if answer.is_success else []


@contextlib.contextmanager
def servers(store: str, *folders: Path, arguments: tuple[str, ...] = ()) -> Iterator[list[Server]]:
    """One server per folder; two may share a folder."""
    with contextlib.ExitStack() as stack:
        started = [Server(store, folder, *arguments) for folder in folders]
        for one in started:
            stack.callback(one.close)
        started[0].start()  # creates the token of a folder that they share
        with ThreadPoolExecutor() as threads:
            list(threads.map(Server.start, started[1:]))
        yield started


Pair = tuple[Server, Server]


@pytest.fixture(scope="module")
def started_pairs() -> Iterator[dict[str, Pair]]:
    """Two servers for each backend, shared by the tests."""
    pairs: dict[str, Pair] = {}
    yield pairs
    for one in itertools.chain(*pairs.values()):
        one.close()


@pytest.fixture
def pair(
    request: pytest.FixtureRequest,
    started_pairs: dict[str, Pair],
    backend: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    """The two servers of a backend, both running, and a service that no other test uses."""
    if backend not in started_pairs:
        store, folder = request.getfixturevalue("store_url"), tmp_path_factory.mktemp("several")
        started_pairs[backend] = Server(store, folder / "a"), Server(store, folder / "b")
        with ThreadPoolExecutor() as threads:
            list(threads.map(Server.start, started_pairs[backend]))
    service = Service(f"Shop/{uuid.uuid4().hex}")
    for one in started_pairs[backend]:
        one.use(service)
        if not one.runs:
            one.start()
    return started_pairs[backend]


on_etcd_and_redis = pytest.mark.parametrize("backend", ["etcd-3.5", "redis-7.0"])


@on_etcd_and_redis
def test_an_instance_can_use_any_server(pair: Pair):
    a, b = pair
    made = a.register()
    until(lambda: b.called() == [made["id"]])
    for one in (b, a, b):
        one.beat(made)
    again = b.register(incarnation=made["incarnation"])
    assert (again["id"], again["incarnation"]) == (made["id"], made["incarnation"])
    path = f"{b.service.instances}/{made['id']}?incarnation={made['incarnation']}"
    b.ask("DELETE", path, status=204)
    until(lambda: a.called() == [])
    a.beat(made, status=404)


@on_etcd_and_redis
def test_an_operator_action_on_one_server_is_seen_on_all_at_once(pair: Pair):
    a, b = pair
    made = a.register()
    instance = f"{a.service.admin}/instances/{made['id']}"
    until(lambda: b.registered() == [made["id"]])
    with b.client.stream("GET", f"/admin/events?service={a.service.name}") as stream:
        lines = stream.iter_lines()
        assert "event: hello" in itertools.islice(lines, 10)
        assert a.ask("POST", f"{instance}/drain")["enabled"] is False
        event = next(line for line in lines if a.service.name in line and '"enabled":false' in line)
        assert made["id"] in event
    until(lambda: b.called() == [])
    until(lambda: b.beat(made)["enabled"] is False)
    assert b.ask("POST", f"{instance}/enable")["enabled"] is True
    until(lambda: a.called() == [made["id"]])
    b.ask("DELETE", instance, status=204)
    a.beat(made, status=410)
    b.register(incarnation=made["incarnation"], status=410)
    until(lambda: a.registered() == [])
    assert a.register()["incarnation"] != made["incarnation"]


@on_etcd_and_redis
def test_a_killed_server_loses_nothing(pair: Pair, backend: str):
    a, b = pair
    made = [a.register(f"10.0.0.{number}") for number in range(1, 6)]
    ids = sorted(registration["id"] for registration in made)
    a.ask("POST", f"{a.service.admin}/instances/{ids[0]}/drain?reason=slow")
    if backend.startswith("etcd"):
        a.ask("PUT", "/admin/tenants/7", DOCUMENT, status=201)
    a.kill()
    lines = (a.data / "audit.jsonl").read_text().splitlines()
    ours = [entry for entry in map(json.loads, lines) if a.service.admin[6:] in entry["path"]]
    assert [entry["method"] for entry in ours] == ["POST"] * 6
    assert ours[5]["notes"]["reason"] == "slow"
    until(lambda: sorted(b.registered()) == ids)
    until(lambda: sorted(b.called()) == ids[1:])
    for registration in made:
        b.beat(registration)
    if backend.startswith("etcd"):
        assert b.get("/admin/tenants/7")["document"]["meta"]["code"] == "acme"
    a.start()
    until(lambda: sorted(a.registered()) == ids)
    assert a.service.instances in [entry["path"] for entry in a.get("/admin/audit?limit=1000")]
    for registration in made:
        a.beat(registration)


@pytest.mark.parametrize("backend", ["etcd-3.5", "served"])
def test_tokens_sessions_and_the_audit_log_are_shared(pair: Pair):
    """By servers with the same key, on a durable store."""
    a, b = pair

    def create(number: int) -> Any:
        body = {"name": f"token {number}", "role": "viewer"}
        return (a, b)[number % 2].ask("POST", "/admin/tokens", body, status=201)

    def audited(one: Server) -> Any:
        return [entry for entry in one.get("/admin/audit?limit=1000") if "token" in entry["path"]]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(create, range(40)))
    wanted = {token["id"] for token in made}
    until(lambda: wanted <= ids(a) and wanted <= ids(b))
    for one in (a, b):
        assert whoami(one, made[0]["token"]) == 200
    b.ask("DELETE", f"/admin/tokens/{made[0]['id']}")
    assert whoami(b, made[0]["token"]) == 401
    until(lambda: whoami(a, made[0]["token"]) == 401)
    until(lambda: len(audited(a)) == 41)
    written = audited(a)
    until(lambda: audited(b) == written)
    assert sorted(entry["method"] for entry in written) == ["DELETE", *["POST"] * 40]
    assert written == sorted(written, key=lambda entry: entry["id"], reverse=True)
    b.login(a.link())
    until(lambda: a.logged_in(b.browser) == 200)
    a.kill()
    assert wanted <= ids(b)
    assert audited(b) == written
    a.start()
    assert a.logged_in(b.browser) == 200, "a restart ends no session"
    assert whoami(a, made[1]["token"]) == 200
    a.login(b.link())


class TestOnRedis:
    @pytest.fixture
    def backend(self) -> str:
        return "redis-7.0"

    def test_all_servers_clean_up_and_one_is_enough(self, store_url: str, tmp_path: Path):
        settings = tmp_path / "settings.yaml"
        settings.write_text(
            "registry:\n  heartbeat: {heartbeat-interval: 10ms}\n"
            "  cleanup: {global-timeout: 5s, interval: 200ms}\n"
        )
        folders = tmp_path / "a", tmp_path / "b"
        with servers(store_url, *folders, arguments=(f"--config={settings}",)) as (a, b):
            lives, dies = a.register("10.0.0.1"), b.register("10.0.0.2")
            turns = itertools.cycle([a, b])

            def swept() -> bool:
                time.sleep(BEAT)
                next(turns).beat(lives)
                return a.registered() == b.registered() == [lives["id"]]

            until(swept, within=PATIENCE)
            a.beat(dies, status=404)
            late = a.register("10.0.0.3")
            a.kill()

            def swept_by_the_other() -> bool:
                time.sleep(BEAT)
                b.beat(lives)
                return b.registered() == [lives["id"]]

            until(swept_by_the_other, within=PATIENCE)
            b.beat(late, status=404)


def whoami(one: Server, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return one.client.get("/admin/whoami", headers=headers).status_code


def ids(one: Server) -> set[str]:
    return {token["id"] for token in one.get("/admin/tokens")}


class TestWebhook:
    @on_etcd_and_redis
    @pytest.mark.deadline
    def test_one_server_sends_notices_and_another_takes_over_when_it_is_killed(
        self, store_url: str, tmp_path: Path
    ):
        with receiving() as receiver:
            settings = tmp_path / "settings.yaml"
            settings.write_text(
                f"alerts: {{webhook: 'http://127.0.0.1:{receiver.server_port}/', after: 500ms}}\n"
            )
            folders = tmp_path / "a", tmp_path / "b"
            arguments = (f"--config={settings}",)
            with servers(store_url, *folders, arguments=arguments) as (a, b):
                cart = Unhealthy(b, Service("Shop/Cart"))
                until(lambda: len(receiver.notices) == 1)
                asyncio.run(left_to_a_successor(store_url, cart.problem))
                assert a.calls_the_webhook != b.calls_the_webhook
                caller, other = (a, b) if a.calls_the_webhook else (b, a)
                caller.kill()
                killed = time.monotonic()
                stock = Unhealthy(other, Service("Shop/Stock"))
                # If the other had sent notices too, or did not know of it, it would report the
                # first one again.
                until(lambda: len(receiver.notices) == 2, within=PATIENCE)
                assert time.monotonic() - killed < 15, "the TTL is 10 s"
                cart.beat(other, healthy=True)
                until(lambda: len(receiver.notices) == 3)
                assert receiver.problems == [
                    ("firing", cart.problem),
                    ("firing", stock.problem),
                    ("resolved", cart.problem),
                ]


class Unhealthy:
    """A service with two instances, one of which is unhealthy."""

    def __init__(self, one: Server, service: Service) -> None:
        self._service = service
        self.problem = f"unhealthy:{service.name}"
        one.use(service)
        self._made = [one.register(host) for host in ("10.0.0.1", "10.0.0.2")]
        self.beat(one, healthy=False)

    def beat(self, one: Server, *, healthy: bool) -> None:
        first, _ = self._made
        body = {"incarnation": first["incarnation"], "healthy": healthy}
        one.ask("PUT", f"{self._service.instances}/{first['id']}/beat", body)


async def left_to_a_successor(store: str, problem: str) -> None:
    """Wait until the server that sends notices has stored that it reported a problem."""
    async with mooring.connect(store) as hub:
        duty = (
            RedisElection(hub.registry.leader_lease)
            if isinstance(hub.registry, RedisRegistry)
            else StoreElection(hub)
        )

        async def noted() -> bool:
            return problem.encode() in await duty.load_reported()

        await eventually(noted)
