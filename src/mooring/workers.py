"""One registration for several processes that serve one address.

Under a pre-fork server (gunicorn, uvicorn --workers) every worker runs the same code at the same
address. Were each to register, the newest would supersede the others, and its end would take the
address out of the registry though the others still serve it. So the workers of a machine take
turns, by a lock on a file: one registers, the others wait and take over when it goes or dies.
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
import threading
import time
import uuid
from pathlib import Path
from typing import Literal, Self

import msgspec

from mooring.addresses import reachable_host
from mooring.errors import InvalidRequest
from mooring.hub import Hub
from mooring.model import Instance, RegistrationState
from mooring.registry.registration import Registration
from mooring.registry.shutdown import LINGER
from mooring.tasks import Tasks, cleanup, in_thread

log = logging.getLogger(__name__)

LISTENS_WITHIN = 5.0
"""Seconds until an address that takes no connections is registered all the same: it may be one
that cannot be reached from the machine itself."""

HAND_OVER = 2.0
"""Seconds that a worker which goes gives another to take its place before it deregisters."""

_LOOK_EVERY = 0.02  # seconds

State = RegistrationState | Literal["waiting"]


class SharedRegistration:
    """An instance that is registered by one of the processes that enter this; an async context
    manager.

    Entering returns once the instance is registered, as that of `hub.register` does, or at once
    where another process of this user on this machine has registered it: then this one waits in
    the background, and registers as soon as the other is gone, by whatever end. Leaving hands the
    registration over to a process that waits, without a gap, and deregisters where none does.
    Where an operator deregistered it, none of those that waited meanwhile brings it back.

    Which processes belong together is told by the registry's URL and layout, the service and the
    address. The locks lie in `folder`; see `runtime_folder` for where that is by default.
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
        self._registration: Registration | None = None
        self._entered = asyncio.Event()
        self._tasks = Tasks()
        self._closed = self._removed = False
        self._process = os.getpid()

    @property
    def registration(self) -> Registration | None:
        """The registration, where this process has it."""
        return self._registration

    @property
    def instance(self) -> Instance:
        return self._instance if self._registration is None else self._registration.instance

    @property
    def state(self) -> State:
        """That of the registration; `waiting` where another process has it."""
        if self._registration is not None:
            return self._registration.state
        if self._closed:
            return "closed"
        return "removed" if self._removed else "waiting"

    def start(self) -> None:
        """Enter in the background, once the address takes connections: a server may still be about
        to listen. What goes wrong is logged."""
        self._tasks.start(self._begin(), name=f"registration of {self._instance.id}")

    async def _begin(self) -> None:
        host, port = self._instance.host, self._instance.port_for("http")
        if not await listens(host, port, within=LISTENS_WITHIN):
            log.warning(
                "%s: port %d takes no connections from this machine: registered all the same",
                self._name,
                port,
            )
        await self.__aenter__()

    async def __aenter__(self) -> Self:
        if self._turn.take():
            await self._register()
        else:
            log.info("%s is registered by another process: waiting for a turn", self._name)
            self._tasks.start(self._take_over(), name=f"turn to register {self._instance.id}")
        return self

    @property
    def _name(self) -> str:
        return f"{self._instance.service} {self._instance.id}"

    async def _take_over(self) -> None:
        self._removed = not await self._turn.wait()
        if self._removed:
            # The turn is kept: it ends with the last of those whom the operator meant.
            log.warning("%s: an operator deregistered it: not taken over", self._name)
            return
        log.info("%s: taking over from a process that is gone", self._name)
        await self._register()

    async def _register(self) -> None:
        registration = self._hub.register(self._instance, ttl=self._ttl, wait=self._wait)
        registration.subscribe(lambda state: self._turn.forbid() if state == "removed" else None)
        try:
            self._registration = registration
            await registration.__aenter__()
        except BaseException:
            self._turn.end()
            raise
        finally:
            self._entered.set()

    async def drain(self, *, grace: float = 10.0, linger: float = LINGER) -> None:
        """Go away without anybody noticing: hand over, or drain as `Registration.drain` does.

        One that waits also waits for its callers to notice: where it is told to go, the one that
        is registered mostly is too.
        """
        waiting = self._registration is None
        if not await self._hand_over() and self._registration is not None:
            await self._registration.drain(grace=grace, linger=linger)
        elif waiting:
            await asyncio.sleep(min(linger, grace))
        await self.aclose()

    async def _hand_over(self) -> bool:
        """Whether there is nothing left to deregister: another process has it, or takes it."""
        self._closed = True
        registration = self._registration
        if registration is not None:
            # Were it handed over before it is written, it would be written over the successor's.
            await _wait_for(self._entered, HAND_OVER)
        await self._tasks.aclose()
        if registration is None or registration.state not in ("registered", "suspended"):
            self._turn.end()
            return registration is None
        if not self._turn.wanted:
            return False
        taken = asyncio.Event()
        registration.subscribe(lambda state: taken.set() if state == "superseded" else None)
        self._turn.end()
        return await _wait_for(taken, HAND_OVER) or not self._turn.take()

    async def aclose(self) -> None:
        """Hand over or deregister, within a few seconds whatever the store does."""
        if self._process != os.getpid():
            return  # a forked child is not the worker that entered it
        if not self._closed:
            await cleanup(self._hand_over(), within=2 * HAND_OVER + 1)
        if self._registration is not None:
            await self._registration.aclose()
        self._turn.end()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def listens(host: str, port: int, *, within: float) -> bool:
    """Whether an address takes connections, waiting for it for a while."""
    deadline = time.monotonic() + within
    while (left := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(min(left, 1.0)):
                _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(_LOOK_EVERY)
        else:
            writer.close()
            return True
    return False


class Turn:
    """A place that one process has at a time: a lock on `PATH.lock`, which ends with its process.

    Those who wait share a lock on `PATH.queue`, so that it can be known whether there are any. In
    `PATH.lock` stands the last word of who forbade them to use the place. The files stay: to delete
    one would let two processes lock two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self._lock = path.with_suffix(".lock")
        self._queue = path.with_suffix(".queue")
        self._held: int | None = None

    def take(self) -> bool:
        """Take the place, if nobody has it."""
        if self._held is None:
            self._held = _try_lock(self._lock, fcntl.LOCK_EX)
        return self._held is not None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        descriptor = _try_lock(self._queue, fcntl.LOCK_EX)
        if descriptor is None:
            return True
        _close(descriptor)
        return False

    async def wait(self) -> bool:
        """Wait until the place is ours; whether it may be used, which somebody may have forbidden
        meanwhile. Others get it where this is cancelled."""
        queueing = _open(self._queue)
        fcntl.flock(queueing, fcntl.LOCK_SH)
        try:
            before = self._word
            while not self.take():
                await _freed(self._lock)
            return self._word in (before, b"")
        finally:
            _close(queueing)

    @property
    def _word(self) -> bytes:
        try:
            return self._lock.read_bytes()
        except FileNotFoundError:  # tidied away
            return b""

    def forbid(self) -> None:
        """None of those who wait for it now shall use it. Nothing where it is not ours."""
        if self._held is not None:
            os.pwrite(self._held, uuid.uuid4().bytes, 0)

    def end(self) -> None:
        """Let others have it. Nothing where it is not ours."""
        if self._held is not None:
            held, self._held = self._held, None
            _close(held)


def runtime_folder() -> Path:
    """`$XDG_RUNTIME_DIR/mooring` where there is one, else `mooring-UID` in the folder for temporary
    files; made where it is missing, for this user's eyes only. Raises `InvalidRequest` where
    somebody else was there first."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and os.access(given, os.W_OK):
        folder = Path(given, "mooring")
    else:
        folder = Path(tempfile.gettempdir(), f"mooring-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InvalidRequest(
            f"{folder} is not a folder of this user's, and locks in it could be anybody's: remove "
            "it, or set XDG_RUNTIME_DIR"
        )
    return folder


async def _freed(path: Path) -> None:
    """Wait until a lock is free, in a thread: only there can one wait for a file."""
    # Descriptors are the thread's own, to be closed when it is through, however late: it cannot be
    # woken, and a descriptor that is closed before could be another file's by then.
    descriptor = _open(path)

    def wait() -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            _close(descriptor)

    outcome = await in_thread(wait, name=f"mooring waits for {path.name}")
    if outcome is not None:
        raise outcome


def _try_lock(path: Path, how: int) -> int | None:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        _close(descriptor)
        return None
    if not _is_still(path, descriptor):
        _close(descriptor)
        return _try_lock(path, how)
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one of that name: it may have been tidied away meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


_descriptors: set[int] = set()
_changing = threading.Lock()


def _open(path: Path) -> int:
    with _changing:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _descriptors.add(descriptor)
        return descriptor


def _close(descriptor: int) -> None:
    with _changing:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _forget_locks() -> None:
    """In a forked child: it shares the parent's locks, and would keep them alive after it."""
    global _changing
    _changing = threading.Lock()
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_forget_locks)
