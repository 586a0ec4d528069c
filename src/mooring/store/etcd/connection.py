"""The connection to an etcd cluster: one endpoint in use, failover, deadlines and a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from mooring.errors import (
    AccessDenied,
    Closed,
    InvalidURL,
    MooringError,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from mooring.messages import Message, message, verbatim
from mooring.settings.connections import TLS, EtcdConnectionSettings
from mooring.store.etcd.diagnosis import diagnose
from mooring.store.etcd.endpoints import EtcdEndpoint, Preference
from mooring.store.etcd.errors import Verdict, judge, shorten, translate
from mooring.store.etcd.grpc_shutdown import settled
from mooring.store.etcd.proto import AuthenticateRequest, RangeRequest
from mooring.store.url import read_password
from mooring.tasks import Backoff, Tasks

log = logging.getLogger(__name__)

RETURN_AFTER = (60.0, 300.0)
"""The range of the random delay, in seconds, before a client returns to a preferred member."""

_LOGINS = 3
"""The number of logins for one call, in case its token is rejected again."""


class EtcdConnection:
    """Calls go to the endpoint in use; a failure moves all calls to another endpoint. A read is
    retried until its deadline (`settings.timeout`), a write only if it was certainly not accepted.
    """

    def __init__(self, settings: EtcdConnectionSettings, tasks: Tasks) -> None:
        self.settings = settings
        tls = settings.tls
        credentials = _credentials(tls) if tls else None
        name = (tls.server_name or "") if tls else ""
        self.endpoints = [
            EtcdEndpoint(address, credentials, name) for address in settings.endpoints
        ]
        self._preference = Preference(self.endpoints)
        self.moved: list[Callable[[], None]] = []
        """Callbacks after a return to a preferred endpoint: streams should follow."""
        self._returning: asyncio.Task[object] | None = None
        self._tasks = tasks
        self._silent: set[grpc.aio.Channel] = set()
        self.closed = False
        self.metadata = _metadata()
        self._login: asyncio.Task[object] | None = None
        self._logged_in = not settings.user
        # Calls that may be repeated do not wait for a silent connection until the deadline: another
        # endpoint, or a new connection to the same one, may answer.
        self.attempt = min(max(1.0, settings.timeout / 3), settings.timeout)

    @property
    def endpoint(self) -> EtcdEndpoint:
        """The endpoint in use."""
        return self._preference.current

    async def call(
        self,
        method: str,
        request: object,
        *,
        what: Callable[[], Message],
        writes: bool,
    ) -> Any:
        """Make a unary call. Raises `grpc.aio.AioRpcError` for a definite answer of etcd
        (`Verdict.FINAL`), and Mooring's errors for everything else."""
        if self.closed:
            raise Closed(message("store_closed", store=self._subject))
        deadline = time.monotonic() + self.settings.timeout
        if not self._logged_in:
            await self.login(deadline)
        retries: Retries | None = None
        while True:
            endpoint, metadata, sent = self.endpoint, self.metadata, time.monotonic()
            timeout = max(deadline - sent, 0.05)
            try:
                send = getattr(endpoint.methods, method)
                answer = await send(
                    request,
                    timeout=timeout if writes else min(timeout, self.attempt),
                    metadata=metadata,
                )
            except grpc.aio.AioRpcError as error:
                retries = retries or Retries(self, what(), deadline, writes=writes)
                await retries.prepare(error, endpoint, metadata, sent)
            except asyncio.CancelledError:
                self._raise_if_closed(writes)
                raise
            else:
                endpoint.answered()
                return answer

    def _raise_if_closed(self, writes: bool) -> None:
        """Closing a channel cancels its calls, though their callers are not cancelled."""
        if not self.closed or _cancelled():
            return
        if writes:
            raise OutcomeUnknown(
                message("store_closed_before_reply", store=self._subject)
            ) from None
        raise Closed(message("store_closed_meanwhile", store=self._subject)) from None

    async def failure(
        self, error: grpc.aio.AioRpcError, what: Message, endpoint: EtcdEndpoint, writes: bool
    ) -> MooringError:
        """Mooring's error, with a diagnosis if gRPC could not connect."""
        text, where = error.details() or "", verbatim(endpoint.address)
        several = len(self.endpoints) > 1
        if judge(error.code(), text) is Verdict.RETRY:
            diagnosis = await diagnose(endpoint.address, self.settings.tls, within=0.5)
            problem = (
                diagnosis.problem
                if diagnosis
                else message("endpoint_unavailable", address=endpoint.address, reason=shorten(text))
            )
            kind = "no_endpoint_available" if several else "operation_failed"
            return Unavailable(message(kind, operation=what, problem=problem))
        if several:
            where = message("every_endpoint", endpoint=endpoint.address)
        return translate(error.code(), text, where=where, what=what, writes=writes)

    async def explained(self, error: Unavailable) -> Unavailable:
        """The error of a stream, with a diagnosis of the endpoint."""
        diagnosis = await diagnose(self.endpoint.address, self.settings.tls, within=1.0)
        if diagnosis is None:
            return error
        return Unavailable(message("operation_failed", operation=error, problem=diagnosis.problem))

    async def raise_if_unfixable(
        self, endpoint: EtcdEndpoint, what: Message, within: float
    ) -> None:
        """Raise if there is only one endpoint and waiting cannot help (TLS, another server)."""
        if len(self.endpoints) == 1:
            diagnosis = await diagnose(endpoint.address, self.settings.tls, within=within)
            if diagnosis is not None and diagnosis.final:
                raise Unavailable(
                    message("operation_failed", operation=what, problem=diagnosis.problem)
                )

    async def has_quorum(self, endpoint: EtcdEndpoint, name: bytes, *, within: float) -> bool:
        """Whether an endpoint answers a linearizable read, which requires contact with a majority.
        An answer that denies access (permission, expired token) requires that too."""
        request, metadata = RangeRequest(key=name, keys_only=True), self.metadata
        try:
            await endpoint.methods.range(request, timeout=within, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            verdict = judge(error.code(), error.details() or "")
            if verdict is Verdict.LOGIN:
                self.forget_token(metadata)
                with contextlib.suppress(StoreError):
                    await self.ready()
            elif verdict is not Verdict.FINAL:
                return False
        endpoint.answered()
        return True

    def move_on(self, failed: EtcdEndpoint, *, silent_since: float | None = None) -> None:
        """Use another endpoint, if `failed` is the one in use. With `silent_since`, its connection
        is replaced too if nothing arrived over it since then: it is silent, not broken. One that
        received something is only slow, and other calls may need it."""
        if silent_since is not None and failed.heard > silent_since:
            return
        if silent_since is not None and not self.closed and (old := failed.reconnect()):
            self._tasks.start(self._close_later(old), name="close a silent connection")
        if not failed.down_since:
            log.warning("etcd: %s is unavailable", failed.address)
        self._preference.failed(failed, time.monotonic())
        if len(self.endpoints) > 1 and self._returning is None and not self.closed:
            self._returning = self._tasks.start(self._return(), name="return to an etcd member")

    async def _return(self) -> None:
        """Return to a preferred endpoint once it serves again, at a random time. Streams follow:
        they may use another endpoint even if failures have already moved the calls back."""
        try:
            while True:
                await asyncio.sleep(random.uniform(*RETURN_AFTER))
                for endpoint in self._preference.better:
                    if await self.has_quorum(endpoint, b"\0", within=self.attempt):
                        log.info("etcd: returned to %s", endpoint.address)
                        self._preference.current = endpoint
                        break
                for moved in self.moved:
                    moved()
                if not self._preference.better:
                    return
        finally:
            self._returning = None

    async def _close_later(self, channel: grpc.aio.Channel) -> None:
        """Close a connection once its calls have reached their deadlines."""
        self._silent.add(channel)
        await channel.close(self.settings.timeout)
        self._silent.discard(channel)

    async def ready(self) -> None:
        """Log in if necessary, before a stream is opened."""
        if self.closed:
            raise Closed(message("store_closed", store=self._subject))
        if not self._logged_in:
            await self.login(time.monotonic() + self.settings.timeout)

    async def login(self, deadline: float) -> None:
        """Get a token, with one login for all callers. Each caller waits until its own deadline."""
        if self._login is None:
            self._login = self._tasks.start(self._log_in(), name="etcd login")
        login = self._login
        await asyncio.wait([login], timeout=max(deadline - time.monotonic(), 0.05))
        if not login.done():
            endpoint = self.endpoint.address
            raise Unavailable(
                message("no_answer_in_time", operation=self._logging_in, endpoint=endpoint)
            )
        if login.cancelled():
            raise Closed(message("store_closed_meanwhile", store=self._subject))
        if isinstance(problem := login.result(), Exception):
            raise problem

    async def _log_in(self) -> Exception | None:
        """Log in. Returns the error for the callers to raise."""
        try:
            self.metadata = _metadata(*await self._token())
            self._logged_in = True
        except StoreError as error:
            return error
        finally:
            self._login = None
        return None

    def forget_token(self, used: object) -> None:
        """The token in this metadata was rejected: get another one before the next call."""
        if self.settings.user and used is self.metadata:
            self._logged_in = False

    async def _token(self) -> Sequence[tuple[str, str]]:
        what = self._logging_in
        request = AuthenticateRequest(name=self.settings.user, password=self._password())
        deadline = time.monotonic() + self.settings.timeout
        while True:
            endpoint = self.endpoint
            try:
                answer = await endpoint.methods.authenticate(request, timeout=self.attempt)
                return (("token", answer.token),)
            except grpc.aio.AioRpcError as error:
                text = error.details() or ""
                if "authentication is not enabled" in text:
                    log.warning("etcd: %s has authentication off: no login", endpoint.address)
                    return ()
                if judge(error.code(), text) is Verdict.FINAL:
                    raise await self.failure(error, what, endpoint, False) from error
                self.move_on(endpoint)
                await self.raise_if_unfixable(endpoint, what, 1.0)
                if time.monotonic() + 0.1 >= deadline:
                    raise await self.failure(error, what, endpoint, False) from error
                await asyncio.sleep(0.1)

    def _password(self) -> str:
        if (file := self.settings.password_file) is None:
            return self.settings.password
        try:
            return read_password(file)
        except OSError as error:
            reason = verbatim(error.strerror or str(error))
            problem = message("password_file_unreadable", file=str(file), reason=reason)
            raise AccessDenied(
                message("operation_failed", operation=self._logging_in, problem=problem)
            ) from error

    @property
    def _logging_in(self) -> Message:
        return message("op_login", user=self.settings.user)

    def broken(self, what: Message, reason: Message) -> StoreError:
        """The error for the users of a stream that ended."""
        if self.closed:
            return Closed(message("store_closed", store=self._subject))
        return Unavailable(message("operation_failed", operation=what, problem=reason))

    @property
    def _subject(self) -> Message:
        return verbatim(self.name)

    @property
    def name(self) -> str:
        """The URL for people, without the password."""
        scheme = "etcds" if self.settings.tls else "etcd"
        return f"{scheme}://{','.join(self.settings.endpoints)}"

    async def aclose(self) -> None:
        channels = [*self._silent, *(endpoint.channel for endpoint in self.endpoints)]
        await asyncio.gather(*(channel.close() for channel in channels))
        await settled()
        for endpoint in self.endpoints:
            endpoint.release()


class Retries:
    """The retries of one call, until its deadline."""

    def __init__(
        self, connection: EtcdConnection, what: Message, deadline: float, *, writes: bool = False
    ) -> None:
        self._connection, self._what = connection, what
        self._deadline, self._writes = deadline, writes
        self._tries = 0
        self._backoff = Backoff()

    async def prepare(
        self,
        error: grpc.aio.AioRpcError,
        endpoint: EtcdEndpoint,
        metadata: object,
        sent: float,
    ) -> None:
        """After a failed attempt, log in again or use another endpoint, and wait. Raises if the
        call must not be retried."""
        self._tries += 1
        verdict = judge(error.code(), error.details() or "")
        if verdict is Verdict.FINAL:
            raise error
        if verdict is Verdict.LOGIN:
            await self._log_in(error, endpoint, metadata)
            return
        connection = self._connection
        timed_out = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        connection.move_on(endpoint, silent_since=sent if timed_out else None)
        pause, left = self._backoff.next(), self._deadline - time.monotonic()
        if (verdict is Verdict.LOST and self._writes) or pause >= left:
            raise await connection.failure(error, self._what, endpoint, self._writes) from error
        if self._tries == 1:
            await connection.raise_if_unfixable(endpoint, self._what, min(left, 1.0))
        await asyncio.sleep(pause)

    async def wait(self, error: Unavailable, endpoint: EtcdEndpoint) -> None:
        """Wait after a failure of a stream. Raises if the call must not be retried."""
        self._tries += 1
        pause = self._backoff.next()
        if time.monotonic() + pause >= self._deadline:
            raise await self._connection.explained(error) from error
        if self._tries == 1:
            await self._connection.raise_if_unfixable(endpoint, self._what, 1.0)
        await asyncio.sleep(pause)

    async def _log_in(
        self, error: grpc.aio.AioRpcError, endpoint: EtcdEndpoint, metadata: object
    ) -> None:
        connection = self._connection
        if self._tries > _LOGINS or not connection.settings.user:
            raise await connection.failure(error, self._what, endpoint, self._writes) from error
        connection.forget_token(metadata)
        await connection.login(self._deadline)


def _metadata(*more: tuple[str, str]) -> grpc.aio.Metadata:
    """The metadata of every call, converted by gRPC in several µs, so it is created once. With
    `hasleader`, a member without a leader rejects calls immediately instead of going silent."""
    return grpc.aio.Metadata(("hasleader", "true"), *more)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _credentials(tls: TLS) -> grpc.ChannelCredentials:
    """Read and validate the files first: gRPC itself aborts the process for some invalid files."""
    if bool(tls.cert) != bool(tls.key):
        raise InvalidURL(message("tls_needs_cert_and_key"))
    tls.context()
    return grpc.ssl_channel_credentials(
        tls.ca.read_bytes() if tls.ca else None,
        tls.key.read_bytes() if tls.key else None,
        tls.cert.read_bytes() if tls.cert else None,
    )
