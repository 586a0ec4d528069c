"""From a request to its tenant, through real servers and live configuration: ASGI and WSGI."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import wsgiref.util
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import mooring
import mooring.sync
from mooring import asgi, wsgi
from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.store import Put
from mooring.tasks import run_now
from mooring.tenants import current, current_or_none
from mooring.tenants.model import Meta, Resolver, Tenant
from mooring.tenants.read.tenants import Tenants
from tests.waiting import eventually, until

TENANTS: dict[int, dict[str, JSON]] = {
    7: {"code": "acme", "name": "Acme", "status": "active"},
    8: {"code": "brew", "name": "酿酒", "status": "active"},
    9: {"code": "broke", "name": "Broke", "status": "suspended"},
}


@pytest.fixture
async def hub() -> AsyncIterator[mooring.Hub]:
    async with mooring.connect("memory://") as opened:
        publisher = opened.publisher(by="alice")
        for id, meta in TENANTS.items():
            await publisher.put(id, "meta", meta)
            await publisher.put(id, "domain/primary", f"{meta['code']}.example.com")
        yield opened


@pytest.fixture
async def tenants(hub: mooring.Hub) -> AsyncIterator[Tenants]:
    async with hub.tenants() as live:
        yield live


# Raw ASGI: what a server passes, and what it receives.


def scope(kind: str = "http", path: str = "/", query: str = "", **headers: str) -> dict[str, Any]:
    named = [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]
    return {
        **{"type": kind, "method": "GET", "path": path, "query_string": query.encode()},
        "headers": named,
    }


async def never() -> asgi.ASGIMessage:
    raise AssertionError("nothing was to be received")


async def call(app: asgi.ASGIApp, scope: asgi.Scope) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response."""
    sent: list[asgi.ASGIMessage] = []

    async def send(message: asgi.ASGIMessage) -> None:
        sent.append(message)

    await app(scope, never, send)
    start, *bodies = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, b"".join(body.get("body", b"") for body in bodies)


async def answer_with_tenant(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Answers with the current tenant."""
    tenant = current_or_none()
    assert scope["state"]["tenant"] is tenant
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(tenant and tenant.id).encode()})


async def test_the_tenant_is_current_while_the_request_is_served(tenants: Tenants):
    app = asgi.TenantMiddleware(answer_with_tenant, tenants)
    assert (await call(app, scope(x_tenant_id="7")))[::2] == (200, b"7")
    assert (await call(app, scope(x_tenant_id="Brew")))[::2] == (200, b"8")
    assert current_or_none() is None


async def test_the_lifespan_state_provides_the_tenants_and_receives_the_tenant(tenants: Tenants):
    app = asgi.TenantMiddleware(answer_with_tenant)
    with_state = scope(x_tenant_id="7") | {"state": {"tenants": tenants, "mine": 1}}
    assert (await call(app, with_state))[::2] == (200, b"7")
    assert with_state["state"]["tenant"].meta.code == "acme"
    assert with_state["state"]["mine"] == 1
    for without in (scope(x_tenant_id="7"), with_state | {"state": {}}):
        with pytest.raises(InvalidRequest, match="'tenants'"):
            await call(app, without)


@pytest.mark.parametrize(
    ("header", "status", "code", "tenant"),
    [
        ({}, 400, "tenant_missing", None),
        ({"x_tenant_id": "7, 8"}, 400, "tenant_ambiguous", None),
        ({"x_tenant_id": "x" * 10_000}, 400, "tenant_malformed", None),
        ({"x_tenant_id": "70"}, 404, "tenant_unknown", 70),
        ({"x_tenant_id": "\xff\xfe<script>"}, 404, "tenant_unknown", "��<script>"),
        ({"x_tenant_id": "broke"}, 403, "tenant_suspended", "broke"),
    ],
)
async def test_a_rejected_request_gets_the_reason_in_json(
    tenants: Tenants, header: dict[str, str], status: int, code: str, tenant: object
):
    def refusing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise AssertionError("the application was called")

    async def refused(*_: object) -> None:
        raise AssertionError("the application was called")

    answered, headers, body = await call(asgi.TenantMiddleware(refused, tenants), scope(**header))
    error = json.loads(body)["error"]
    assert (answered, error["code"], error["tenant"]) == (status, code, tenant)
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["cache-control"] == "no-store"
    environ = {f"HTTP_{name.upper()}": value for name, value in header.items()}
    again = answer_of(wsgi.TenantMiddleware(refusing, tenants), **environ)
    assert again == (status, headers, body)


async def test_a_response_to_head_has_no_body(tenants: Tenants):
    head = scope() | {"method": "HEAD"}
    status, headers, body = await call(asgi.TenantMiddleware(answer_with_tenant, tenants), head)
    assert (status, body) == (400, b"")
    assert int(headers["content-length"]) > 0
    app = wsgi.TenantMiddleware(say, tenants)
    assert answer_of(app, REQUEST_METHOD="HEAD") == (status, headers, b"")


async def test_a_duplicate_host_is_refused(tenants: Tenants):
    app = asgi.TenantMiddleware(answer_with_tenant, tenants, resolver=Resolver(http_type="host"))
    assert (await call(app, scope(host="acme.example.com:8080")))[::2] == (200, b"7")
    twice = scope(host="acme.example.com")
    twice["headers"] *= 2
    assert (await call(app, twice))[0] == 400


async def test_optional_tenants_and_exempt_paths_need_no_tenant(tenants: Tenants):
    optional = asgi.TenantMiddleware(answer_with_tenant, tenants, required=False)
    assert (await call(optional, scope()))[::2] == (200, b"None")
    assert (await call(optional, scope(x_tenant_id="70")))[0] == 404
    exempting = asgi.TenantMiddleware(answer_with_tenant, tenants, exempt=["/health"])
    assert (await call(exempting, scope(path="/health")))[::2] == (200, b"None")
    assert (await call(exempting, scope(path="/")))[0] == 400
    below = scope(path="/app/health") | {"root_path": "/app"}
    assert (await call(exempting, below))[::2] == (200, b"None")


async def test_path_segments_are_counted_below_the_mount_point(tenants: Tenants):
    app = asgi.TenantMiddleware(answer_with_tenant, tenants, resolver=Resolver(http_type="path"))
    assert (await call(app, scope(path="/acme/orders")))[::2] == (200, b"7")
    for root in ("/app", "/app/"):
        below = scope(path="/app/acme/orders") | {"root_path": root}
        assert (await call(app, below))[::2] == (200, b"7")
    elsewhere = scope(path="/brew/orders") | {"root_path": "/b"}
    assert (await call(app, elsewhere))[::2] == (200, b"8")


async def test_other_scopes_pass_unchanged(tenants: Tenants):
    seen: list[str] = []

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        seen.append(scope["type"])

    wrapped = asgi.TenantMiddleware(app)
    for kind in ("lifespan", "something.else"):
        await wrapped({"type": kind}, never, never)  # type: ignore[arg-type]
    assert seen == ["lifespan", "something.else"]


async def test_an_exception_leaves_no_current_tenant_behind(tenants: Tenants):
    async def app(*_: object) -> None:
        assert current().id == 7
        raise ValueError("mine")

    def blocking(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        assert current().id == 7
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await call(asgi.TenantMiddleware(app, tenants), scope(x_tenant_id="7"))
    assert current_or_none() is None
    with pytest.raises(ValueError, match="mine"):
        answer_of(wsgi.TenantMiddleware(blocking, tenants), HTTP_X_TENANT_ID="7")
    assert current_or_none() is None


async def test_concurrent_requests_and_their_tasks_have_separate_tenants(hub: mooring.Hub):
    publisher = hub.publisher(by="alice")
    for id in range(100, 130):
        await publisher.put(id, "meta", {"code": f"t{id}", "name": f"t{id}"})
    later: list[asyncio.Task[tuple[int, int]]] = []

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        mine = scope["state"]["tenant"].id

        async def outlive() -> tuple[int, int]:
            await asyncio.sleep(0.05)
            return mine, current().id

        later.append(asyncio.create_task(outlive()))
        for _ in range(10):
            await asyncio.sleep(0)
            assert current().id == mine
            assert await asyncio.to_thread(lambda: current().id) == mine
        await answer_with_tenant(scope, receive, send)

    async with hub.tenants() as tenants:
        wrapped = asgi.TenantMiddleware(app, tenants)
        answers = await asyncio.gather(
            *(call(wrapped, scope(x_tenant_id=f"t{id}")) for id in range(100, 130))
        )
    assert [int(body) for _, _, body in answers] == list(range(100, 130))
    assert sorted(await asyncio.gather(*later)) == [(id, id) for id in range(100, 130)]


async def test_before_the_tenants_are_loaded_requests_get_503(tenants: Tenants):
    loaded: list[Tenants] = []
    app = asgi.TenantMiddleware(answer_with_tenant, lambda: loaded[0] if loaded else None)
    status, _, body = await call(app, scope(x_tenant_id="7"))
    assert (status, json.loads(body)["error"]["code"]) == (503, "tenants_unavailable")
    loaded.append(tenants)
    assert (await call(app, scope(x_tenant_id="7")))[::2] == (200, b"7")


# Websockets.


async def talk(app: asgi.ASGIApp, scope: asgi.Scope, first: str) -> list[asgi.ASGIMessage]:
    sent: list[asgi.ASGIMessage] = []

    async def receive() -> asgi.ASGIMessage:
        return {"type": first}

    async def send(message: asgi.ASGIMessage) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_a_websocket_is_refused_before_it_is_accepted(tenants: Tenants):
    app = asgi.TenantMiddleware(answer_with_tenant, tenants)
    refused = scope("websocket", x_tenant_id="broke")
    assert await talk(app, refused, "websocket.connect") == [
        {"type": "websocket.close", "code": 1008, "reason": "tenant_suspended"}
    ]
    able = refused | {"extensions": {"websocket.http.response": {}}}
    start, body = await talk(app, able, "websocket.connect")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 403)
    assert body["type"] == "websocket.http.response.body"
    assert json.loads(body["body"])["error"]["code"] == "tenant_suspended"
    assert await talk(app, able, "websocket.disconnect") == []


async def test_a_websocket_has_its_tenant(tenants: Tenants):
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(f"{text} {current().id} {websocket.state.tenant.id}")

    app = Starlette(
        routes=[WebSocketRoute("/", echo)],
        middleware=[Middleware(asgi.TenantMiddleware, tenants)],
    )
    incoming: asyncio.Queue[asgi.ASGIMessage] = asyncio.Queue()
    for message in (
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "a"},
        {"type": "websocket.disconnect", "code": 1000},
    ):
        incoming.put_nowait(message)
    sent: list[asgi.ASGIMessage] = []

    async def send(message: asgi.ASGIMessage) -> None:
        sent.append(message)

    await app(scope("websocket", x_tenant_id="acme"), incoming.get, send)
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.send"]
    assert sent[1]["text"] == "a 7 7"


# Starlette on a real uvicorn, with its tenants in the lifespan state.

seen_in_background: list[int] = []


async def starlette_who(request: Request) -> Response:
    assert request.state.tenant is current()
    seen_in_background.clear()
    later = BackgroundTask(lambda: seen_in_background.append(current().id))
    return JSONResponse({"id": current().id}, background=later)


def threaded_who(request: Request) -> Response:
    return PlainTextResponse(str(current().id))


async def streamed(request: Request) -> Response:
    async def body() -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield f"{current().id} "

    return StreamingResponse(body())


@pytest.fixture
async def client(hub: mooring.Hub) -> AsyncIterator[httpx.AsyncClient]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Tenants]]:
        async with hub.tenants() as tenants:
            yield {"tenants": tenants}

    routes = [
        Route("/who", starlette_who),
        Route("/thread", threaded_who),
        Route("/stream", streamed),
        Route("/{first}/{second}", starlette_who),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(asgi.TenantMiddleware)],
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as opened:
        yield opened
    server.should_exit = True
    await serving


async def test_starlette_on_a_server(client: httpx.AsyncClient):
    acme = {"X-Tenant-ID": "acme"}
    assert (await client.get("/who", headers=acme)).json() == {"id": 7}
    await eventually(lambda: seen_in_background == [7])
    assert (await client.get("/thread", headers=acme)).text == "7"
    assert (await client.get("/stream", headers=acme)).text == "7 7 7 "
    refused = await client.get("/who", headers=[("X-Tenant-ID", "7"), ("X-Tenant-ID", "8")])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "tenant_ambiguous"
    assert (await client.head("/who")).status_code == 400


async def test_changes_of_the_resolver_take_effect_immediately(
    hub: mooring.Hub, client: httpx.AsyncClient
):
    publisher = hub.publisher(by="alice")

    async def answers(url: str, tenant: int, host: str = "") -> bool:
        answer = await client.get(url, headers={"Host": host} if host else {})
        return answer.status_code == 200 and answer.json() == {"id": tenant}

    assert not await answers("/who?org=brew", 8)
    await publisher.put_common("common/resolver", {"httpType": "query", "httpQueryParam": "org"})
    await eventually(lambda: answers("/who?org=brew", 8))
    await publisher.put_common("common/resolver", {"httpType": "path", "httpPathIndex": 1})
    await eventually(lambda: answers("/orders/%61cme", 7))
    await publisher.put_common("common/resolver", {"httpType": "host", "httpHostMode": "domain"})
    await eventually(lambda: answers("/who", 7, "ACME.example.com.:80"))
    await publisher.put_common("common/resolver", {"httpType": "host", "httpHostMode": "numeric"})
    await eventually(lambda: answers("/who", 8, "8.example.com"))
    await publisher.put_common("common/resolver", {"httpType": "host", "httpHostMode": "code"})
    await eventually(lambda: answers("/who", 8, "brew.anywhere.test"))


async def test_a_broken_resolver_never_lets_clients_choose_their_tenant(hub: mooring.Hub):
    """If hosts identify tenants, a header must not."""
    key = b"jxt/common/resolver"
    by_header, by_host = scope(x_tenant_id="7"), scope(host="acme.example.com")
    await hub.store.commit(Put(key, b'{"httpType": "hots"}'))
    async with hub.tenants() as tenants:
        app = asgi.TenantMiddleware(answer_with_tenant, tenants)
        for scope_ in (by_header, by_host):
            status, _, body = await call(app, scope_)
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (503, "tenants_unavailable")
            assert "common/resolver" in error["message"]
        await hub.store.commit(Put(key, b'{"httpType": "host", "httpHostMode": ""}'))
        await eventually(lambda: tenants.resolver is not None)
        assert (await call(app, by_host))[::2] == (200, b"7")
        await hub.store.commit(Put(key, b"{"))
        await eventually(lambda: key.decode() in tenants.problems)
        assert (await call(app, by_host))[::2] == (200, b"7")
        assert (await call(app, by_header))[0] == 400


async def test_a_suspended_or_deleted_tenant_is_refused_immediately(
    hub: mooring.Hub, client: httpx.AsyncClient
):
    publisher = hub.publisher(by="alice")

    async def status() -> int:
        return (await client.get("/who", headers={"X-Tenant-ID": "7"})).status_code

    async def becomes(wanted: int) -> bool:
        return await status() == wanted

    assert await status() == 200
    await publisher.put(7, "meta", TENANTS[7] | {"status": "suspended"})
    await eventually(lambda: becomes(403))
    await publisher.put(7, "meta", TENANTS[7])
    await eventually(lambda: becomes(200))
    await publisher.delete(7)
    await eventually(lambda: becomes(404))


# WSGI.


def say(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    tenant = current_or_none()
    assert environ["mooring.tenant"] is tenant
    start_response("200 OK", [])
    return [str(tenant and tenant.id).encode()]


def answer_of(app: WSGIApplication, **environ: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a response, as a server gets them."""
    started: list[Any] = []
    whole: WSGIEnvironment = dict(environ)
    wsgiref.util.setup_testing_defaults(whole)

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        started[:] = [status, headers]

    body = app(whole, start_response)
    try:
        sent = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    return int(started[0].split()[0]), dict(started[1]), sent


def alone(resolver: Resolver | None = None) -> Tenants:
    """Only tenant 7, without a store."""
    from mooring.tenants.read.snapshot import TenantSnapshot

    tenant = Tenant(7, Meta(id=7, code="码", name="acme"))
    snapshot, _ = run_now(TenantSnapshot(resolver=resolver or Resolver()).changing({7: tenant}))
    return Tenants(snapshot)


@pytest.mark.parametrize(
    ("resolver", "environ"),
    [
        (Resolver(), {"HTTP_X_TENANT_ID": "7"}),
        (Resolver(), {"HTTP_X_TENANT_ID": "码".encode().decode("latin-1")}),
        (Resolver(http_type="query"), {"QUERY_STRING": "a&tenant=%E7%A0%81"}),
        (Resolver(http_type="path"), {"PATH_INFO": "/" + "码".encode().decode("latin-1")}),
        (Resolver(http_type="path"), {"SCRIPT_NAME": "/app", "PATH_INFO": "/7/x"}),
        (Resolver(http_type="host", http_host_mode="numeric"), {"HTTP_HOST": "7.a.b:80"}),
    ],
)
def test_wsgi_identifies_tenants_in_the_same_ways(resolver: Resolver, environ: dict[str, str]):
    app = wsgi.TenantMiddleware(say, alone(resolver))
    assert answer_of(app, **environ)[::2] == (200, b"7")
    assert current_or_none() is None


def test_the_tenant_is_current_while_the_body_is_generated_but_not_in_between():
    closed: list[int] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(2):
                yield str(current().id).encode()

        def close(self) -> None:
            closed.append(current().id)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return Body()

    wrapped = wsgi.TenantMiddleware(app, alone())
    body = wrapped({"HTTP_X_TENANT_ID": "7"}, lambda *_: None)  # type: ignore[arg-type]
    for piece in body:
        assert piece == b"7"
        assert current_or_none() is None
    body.close()  # type: ignore[attr-defined]
    assert closed == [7]

    def breaks(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        yield b"a"
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        answer_of(wsgi.TenantMiddleware(breaks, alone()), HTTP_X_TENANT_ID="7")
    assert current_or_none() is None


def test_a_body_that_a_server_may_send_directly_is_passed_unchanged(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"content")
    for made in ([b"a"], (b"a",), wsgiref.util.FileWrapper((tmp_path / "file").open("rb"))):
        app = wsgi.TenantMiddleware(lambda environ, start_response: made, alone())  # noqa: B023
        environ = {"HTTP_X_TENANT_ID": "7", "wsgi.file_wrapper": wsgiref.util.FileWrapper}
        assert app(environ, None) is made  # type: ignore[arg-type]
        if not isinstance(made, list | tuple):
            made.close()


class Threading(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def served(app: WSGIApplication) -> Iterator[httpx.Client]:
    server = make_server("127.0.0.1", 0, app, server_class=Threading, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}") as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_wsgi_on_a_server_with_threads_and_a_live_store():
    together = threading.Barrier(2)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        if environ["PATH_INFO"] == "/together":
            together.wait(10)
        yield str(current().id).encode()

    with mooring.sync.connect("memory://") as hub:
        publisher = hub.publisher(by="alice")
        for id in (7, 8):
            publisher.put(id, "meta", TENANTS[id])
        with (
            hub.tenants() as tenants,
            served(wsgi.TenantMiddleware(app, lambda: tenants)) as client,
        ):
            answers: dict[str, str] = {}

            def ask(name: str) -> None:
                answer = client.get("/together", headers={"X-Tenant-ID": name})
                answers[name] = answer.text

            threads = [threading.Thread(target=ask, args=(name,)) for name in ("7", "brew")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == {"7": "7", "brew": "8"}
            twice = client.get("/", headers=[("X-Tenant-ID", "7"), ("X-Tenant-ID", "8")])
            assert twice.json()["error"]["code"] == "tenant_ambiguous"
            suspended = TENANTS[7] | {"status": "suspended"}
            publisher.put(7, "meta", suspended)
            until(lambda: client.get("/", headers={"X-Tenant-ID": "7"}).status_code == 403)
            publisher.put_common("common/resolver", {"httpType": "query"})
            until(lambda: client.get("/?tenant=brew").text == "8")


def without(*modules: str) -> Callable[[str], str]:
    def run(script: str) -> str:
        gone = "".join(f"sys.modules[{name!r}] = None\n" for name in modules)
        command = [sys.executable, "-c", f"import sys\n{gone}{script}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


def test_the_middleware_needs_no_extra():
    script = "import mooring.asgi, mooring.wsgi; print(mooring.asgi.TenantMiddleware.__name__)"
    assert without("immutables", "cryptography", "starlette")(script) == "TenantMiddleware\n"
