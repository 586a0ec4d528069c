"""The gRPC server for etcd's API on the embedded engine, with TLS."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from mooring.connection_limit import ConnectionLimit
from mooring.errors import InvalidRequest, StoreError
from mooring.etcd_server.auth import USERS, AuthService
from mooring.etcd_server.connections import ServerSockets
from mooring.etcd_server.grpc_adapter import MAX_MESSAGE, RpcHandlers
from mooring.etcd_server.kv import KVService
from mooring.etcd_server.lease import LeaseService
from mooring.etcd_server.locking import LockService, ServerLocks
from mooring.etcd_server.maintenance import MEMBERS, ClusterService, MaintenanceService
from mooring.etcd_server.watch import WatchService
from mooring.store.embedded.store import EngineRunner
from mooring.store.etcd.grpc_shutdown import stop
from mooring.tasks import Tasks


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """With `client_ca`, clients need a certificate of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raises `InvalidRequest`. gRPC itself would start, and then reject every client."""
        for path in (self.cert, self.key, self.client_ca):
            if path is not None:
                _read(path)
        for path in (self.cert, self.client_ca):
            if path is not None:
                _check_certificates(path)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.cert, self.key, password=self._no_password
            )
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise InvalidRequest(f"{self.key} is not the key of {self.cert}") from error
            raise InvalidRequest(f"{self.key} is not a private key in PEM format") from error

    def credentials(self) -> grpc.ServerCredentials:
        self.check()
        authority = _read(self.client_ca) if self.client_ca else None
        return grpc.ssl_server_credentials(
            [(_read(self.key), _read(self.cert))], authority, require_client_auth=bool(authority)
        )

    def _no_password(self) -> str:
        """Called if the key has a password: it cannot be typed when a server starts."""
        raise InvalidRequest(f"{self.key} is encrypted with a password: store it without one")


def listen(server: grpc.aio.Server, bind: str, tls: ServerTLS | None) -> int:
    """Bind a server that is not started yet. Returns the port. Raises `StoreError` on failure."""
    try:
        if tls is None:
            port: int = server.add_insecure_port(bind)
        else:
            port = server.add_secure_port(bind, tls.credentials())
    except RuntimeError as error:
        raise StoreError(
            f"cannot listen at {bind}: does the address belong to this machine, is the port free?"
        ) from error
    return port


def _check_certificates(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise InvalidRequest(f"{path} contains no certificate in PEM format") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error


log = logging.getLogger(__name__)

LISTENER_OPTIONS = (
    # Otherwise two servers on one port would both start and share the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    # Accepts pings of clients as often as etcd; gRPC's default minimum is five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Detects clients that disappeared, and frees their watches and connections.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)
"""The options of every server that `listen` binds."""

_OPTIONS = [
    *LISTENER_OPTIONS,
    # Larger messages must be received to reject them with etcd's error.
    ("grpc.max_receive_message_length", 8 * MAX_MESSAGE),
    # The number of queued calls, and their maximum wait in seconds: gRPC's defaults of 3,000 and
    # 30 s would cancel calls of clients that send many at once.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    ("grpc.server_max_unrequested_time_in_server", 600),
]

_HEALTHY = b"\x08\x01"  # the response SERVING of grpc.health.v1


_STREAMS = {"watch", "keepalive", "snapshot", "lock", "campaign", "observe"}
_WITHOUT_TOKEN = {"watch", "status", "authenticate"}
"""A watch stream is always accepted: each watch on it is checked separately."""

_USER_METHODS = (
    "AuthEnable AuthDisable UserAdd UserGet UserList UserDelete UserChangePassword UserGrantRole "
    "UserRevokeRole RoleAdd RoleGet RoleList RoleDelete RoleGrantPermission RoleRevokePermission"
)


class EtcdAPIServer:
    """Serves an engine over etcd's v3 API while it is entered. It does not close the runner.

    `bind` is `HOST:PORT`; for port 0, `address` has the port that was assigned. With `users`
    (passwords by name), every call except logins and the status requires a token, as in etcd.
    With `locks` it also serves the Lock and Election services. `connections` limits the connections
    of one client address.

    Entering raises `StoreError` if the address cannot be bound, and `InvalidRequest` if a file of
    `tls` is invalid. Leaving ends calls immediately; `drain` lets them finish first.
    """

    def __init__(
        self,
        runner: EngineRunner,
        *,
        bind: str = "127.0.0.1:2379",
        tls: ServerTLS | None = None,
        users: Mapping[str, str] | None = None,
        locks: ServerLocks | None = None,
        connections: ConnectionLimit | None = None,
    ) -> None:
        self.port = 0
        self._runner, self._bind, self._tls = runner, bind, tls
        self._locks = locks
        self._auth = AuthService(runner, users or {})
        self._calls = RpcHandlers(self._auth, runner)
        self._tasks = Tasks()
        self._server: grpc.aio.Server | None = None
        self._limit = connections or ConnectionLimit()

    @property
    def address(self) -> str:
        """The address of the listener: `HOST:PORT`."""
        return f"{self._bind.rpartition(':')[0]}:{self.port}"

    @property
    def url(self) -> str:
        name = self._bind.rpartition(":")[0]
        if name.strip("[]") in ("", "::", "0.0.0.0"):
            name = socket.gethostname()
        return f"{'https' if self._tls else 'http'}://{name}:{self.port}"

    async def __aenter__(self) -> Self:
        server = grpc.aio.server(options=_OPTIONS)
        self.port = listen(server, self._bind, self._tls)
        self._route()
        server.add_generic_rpc_handlers((self._calls,))
        await server.start()
        self._server = server
        self._sockets = ServerSockets(self.port, self._limit)
        self._tasks.start(self._sockets.watch(), name=f"connections to {self.address}")
        self._tasks.start(self._tick(), name=f"ticks of {self.address}")
        return self

    async def drain(self, grace: float) -> None:
        """End open streams, reject new calls, and close once the calls in progress finish, or after
        `grace` seconds. Clients reconnect or use another server."""
        server, self._server = self._server, None
        if server is not None:
            await self._calls.stop(grace)
            # gRPC ends calls that arrive while it stops with CANCELLED, so disconnect first.
            await self._tasks.aclose()
            await self._sockets.close()
            await stop(server, None)

    async def __aexit__(self, *_: object) -> None:
        await self.drain(0)

    def _route(self) -> None:
        calls, runner = self._calls, self._runner
        services: list[tuple[object, str]] = [
            (KVService(runner), "range put delete_range txn compact"),
            (WatchService(runner, self._auth), "watch"),
            (LeaseService(runner), "grant revoke time_to_live leases keepalive"),
            (MaintenanceService(runner), "status hash hash_kv alarm snapshot defragment"),
            (ClusterService(self.url), "member_list"),
            (self._auth, "authenticate auth_status"),
        ]
        if self._locks is not None:
            methods = "lock unlock campaign proclaim leader observe resign"
            services.append((LockService(runner, self._locks), methods))
        for service, methods in services:
            for name in methods.split():
                serve = calls.stream if name in _STREAMS else calls.unary
                serve(name, getattr(service, name), needs_token=name not in _WITHOUT_TOKEN)
        calls.refuse("Cluster", "MemberAdd MemberRemove MemberUpdate MemberPromote", MEMBERS)
        calls.refuse("Maintenance", "MoveLeader Downgrade", MEMBERS)
        calls.refuse("Auth", _USER_METHODS, USERS)
        calls.handlers["/grpc.health.v1.Health/Check"] = grpc.unary_unary_rpc_method_handler(
            _healthy
        )

    async def _tick(self) -> None:
        """Expire leases and notify their watchers even if there are no calls."""
        failing = False
        while True:
            try:
                pause = self._runner.tick()
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("leases cannot expire: %s", error)
                failing, pause = True, 1.0
            await asyncio.sleep(pause)


async def _healthy(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
    return _HEALTHY
