"""One registration for several processes that serve one address.

Under a pre-fork server (gunicorn, uvicorn --workers), all workers run the same code at the same
address. If each registered, the newest would supersede the others, and its end would deregister an
address that the others still serve. So the workers of a machine share a file lock: one registers,
and the others wait and take over when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
import uuid
from pathlib import Path
from typing import Literal, Self

import msgspec

from mooring.addresses import reachable_host
from mooring.errors import InvalidRequest
from mooring.file_lock import close_lock, open_lock
from mooring.hub import Hub
from mooring.model import Instance, RegistrationState
from mooring.registry.registration import Registration
from mooring.registry.shutdown import LINGER
from mooring.tasks import Tasks, cleanup, in_thread, wait_for

log = logging.getLogger(__name__)

LISTENS_WITHIN = 5.0
"""Seconds until an address is registered although it accepts no connections: the machine itself may
be unable to reach it."""

HAND_OVER = 2.0
"""Seconds that a leaving worker waits for another one to take over before it deregisters."""

_POLL_INTERVAL = 0.02  # seconds

WorkerState = RegistrationState | Literal["waiting"]
"""The state of a shared registration. `waiting`: another process has registered."""


class SharedRegistration:
    """An async context manager that registers an instance in one of several processes.

    Entering returns when the instance is registered, like `hub.register`. If another process of
    this user on this machine has registered it, entering returns at once: this process waits in
    the background, and registers when the other one ends. Leaving hands the registration over to a
    waiting process without a gap, and deregisters if none waits. If an operator deregisters the
    instance, no waiting process registers it again.

    Processes share a registration if the URL and the layout of the registry, the service and the
    address are the same. The lock files are in `folder`, by default `runtime_folder()`.
    """

    def __init__(
        self,
        hub: Hub,
        instance: Instance,
        *,
        ttl: float | None = None,
        wait: float = 5.0,
        folder: Path | None = None,
    ) -> None:
        if not instance.host:
            instance = msgspec.structs.replace(instance, host=reachable_host())
        self._instance, _ = hub.registry.prepare(instance)
        self._hub, self._ttl, self._wait = hub, ttl, wait
        key = "\0".join((hub.scope, self._instance.service, self._instance.address))
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._turn = Turn((folder or runtime_folder()) / name)
        self.registration: Registration | None = None
        """The registration, if this process has registered."""
        self._entered = asyncio.Event()
        self._tasks = Tasks()
        self._closed = self._removed = False
        self._process = os.getpid()

    @property
    def instance(self) -> Instance:
        """The instance, with its id once this process registered it."""
        return self._instance if self.registration is None else self.registration.instance

    @property
    def state(self) -> WorkerState:
        """The state of the registration; `waiting` if another process has registered."""
        if self.registration is not None:
            return self.registration.state
        if self._closed:
            return "closed"
        return "removed" if self._removed else "waiting"

    def start(self) -> None:
        """Enter in the background, once the address accepts connections. Errors are logged."""
        self._tasks.start(self._begin(), name=f"registration of {self._instance.id}")

    async def _begin(self) -> None:
        host, port = self._instance.host, self._instance.port_for("http")
        if not await listens(host, port, within=LISTENS_WITHIN):
            log.warning(
                "%s: port %d accepts no connections from this machine: registering nevertheless",
                self._name,
                port,
            )
        await self.__aenter__()

    async def __aenter__(self) -> Self:
        if self._turn.take():
            await self._register()
        else:
            log.info("%s is registered by another process: waiting to take over", self._name)
            self._tasks.start(self._take_over(), name=f"turn to register {self._instance.id}")
        return self

    @property
    def _name(self) -> str:
        return f"{self._instance.service} {self._instance.id}"

    async def _take_over(self) -> None:
        self._removed = not await self._turn.wait()
        if self._removed:
            # Keep the lock, so that none of the waiting processes takes over.
            log.warning("%s: deregistered by an operator: not taking over", self._name)
            return
        log.info("%s: taking over from a process that has ended", self._name)
        await self._register()

    async def _register(self) -> None:
        registration = self._hub.register(self._instance, ttl=self._ttl, wait=self._wait)
        registration.subscribe(lambda state: self._turn.forbid() if state == "removed" else None)
        try:
            self.registration = registration
            await registration.__aenter__()
        except BaseException:
            self._turn.end()
            raise
        finally:
            self._entered.set()

    async def drain(self, *, grace: float = 10.0, linger: float = LINGER) -> None:
        """Leave without failed calls: hand over, or drain as `Registration.drain` does.

        A waiting process also lingers, because the registered one usually drains at the same time.
        """
        waiting = self.registration is None
        if not await self._hand_over() and self.registration is not None:
            await self.registration.drain(grace=grace, linger=linger)
        elif waiting:
            await asyncio.sleep(min(linger, grace))
        await self.aclose()

    async def _hand_over(self) -> bool:
        """Whether another process has registered or takes over, so that nothing is left to do."""
        self._closed = True
        registration = self.registration
        if registration is not None:
            # Otherwise this registration could be written after the successor's.
            await wait_for(self._entered, within=HAND_OVER)
        await self._tasks.aclose()
        if registration is None or registration.state not in ("registered", "suspended"):
            self._turn.end()
            return registration is None
        if not self._turn.wanted:
            return False
        taken = asyncio.Event()
        registration.subscribe(lambda state: taken.set() if state == "superseded" else None)
        self._turn.end()
        return await wait_for(taken, within=HAND_OVER) or not self._turn.take()

    async def aclose(self) -> None:
        """Hand over or deregister, within a few seconds even if the store does not answer."""
        if self._process != os.getpid():
            return  # a forked child did not enter it
        if not self._closed:
            await cleanup(self._hand_over(), within=2 * HAND_OVER + 1)
        if self.registration is not None:
            await self.registration.aclose()
        self._turn.end()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def listens(host: str, port: int, *, within: float) -> bool:
    """Whether an address accepts connections within a time."""
    deadline = time.monotonic() + within
    while (left := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(min(left, 1.0)):
                _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(_POLL_INTERVAL)
        else:
            writer.close()
            return True
    return False


class Turn:
    """A lock that one process holds at a time, on `PATH.lock`. It ends with the process.

    Waiting processes share a lock on `PATH.queue`, which shows whether there are any. The content
    of `PATH.lock` changes when a holder invalidates the turns of the waiting processes. The files
    are never deleted, since two processes could then lock two files of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._lock = path.with_suffix(".lock")
        self._queue = path.with_suffix(".queue")
        self._held: int | None = None

    def take(self) -> bool:
        if self._held is None:
            self._held = _try_lock(self._lock)
        return self._held is not None

    @property
    def wanted(self) -> bool:
        descriptor = _try_lock(self._queue)
        if descriptor is None:
            return True
        close_lock(descriptor)
        return False

    async def wait(self) -> bool:
        """Wait for the lock. Returns whether the turn is valid, that is, whether no holder has
        called `forbid` meanwhile. A cancelled wait leaves the lock to others."""
        queueing = open_lock(self._queue)
        fcntl.flock(queueing, fcntl.LOCK_SH)
        try:
            before = self._mark
            while not self.take():
                await _freed(self._lock)
            return self._mark in (before, b"")
        finally:
            close_lock(queueing)

    @property
    def _mark(self) -> bytes:
        try:
            return self._lock.read_bytes()
        except FileNotFoundError:  # removed by a cleanup of temporary files
            return b""

    def forbid(self) -> None:
        """Invalidate the turns of all waiting processes. Does nothing without the lock."""
        if self._held is not None:
            os.pwrite(self._held, uuid.uuid4().bytes, 0)

    def end(self) -> None:
        """Release the lock. Does nothing without the lock."""
        if self._held is not None:
            held, self._held = self._held, None
            close_lock(held)


def runtime_folder() -> Path:
    """`$XDG_RUNTIME_DIR/mooring` if that variable is set, else `mooring-UID` in the folder for
    temporary files. Created if necessary, readable by this user only. Raises `InvalidRequest` if it
    belongs to another user."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_dir and os.access(runtime_dir, os.W_OK):
        folder = Path(runtime_dir, "mooring")
    else:
        folder = Path(tempfile.gettempdir(), f"mooring-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise InvalidRequest(
            f"{folder} is not a folder of this user, so its locks cannot be trusted: remove it, or "
            "set XDG_RUNTIME_DIR"
        )
    return folder


async def _freed(path: Path) -> None:
    """Wait until a lock is free, in a thread, because there is no asynchronous wait for a file."""
    # The thread cannot be woken and closes its descriptor itself, however late: closed earlier, the
    # number could belong to another file by then.
    descriptor = open_lock(path)

    def wait() -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            close_lock(descriptor)

    outcome = await in_thread(wait, name=f"mooring waits for {path.name}")
    if outcome is not None:
        raise outcome


def _try_lock(path: Path) -> int | None:
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        close_lock(descriptor)
        return None
    if not _is_still(path, descriptor):
        close_lock(descriptor)
        return _try_lock(path)
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether an open file still has that name: it may have been deleted meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
