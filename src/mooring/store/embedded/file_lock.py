"""The lock with which one process owns the file of a store."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from pathlib import Path

from mooring.errors import InUse


def acquire(path: Path, flags: int) -> int:
    """Lock the file until this process ends or releases it. Returns the descriptor of the lock.
    Raises `InUse`, which names the process that holds it."""
    lock = _open(_lock_file(path), flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 1000).decode(errors="replace") or "another process"
        release(lock)
        raise InUse(
            f"{path} is in use by {holder}: one process owns a store; stop it, or reach the store "
            "through it (mooring serve)"
        ) from None
    if flags & os.O_RDWR:
        os.ftruncate(lock, 0)
        program = Path(sys.argv[0]).name or "python"
        os.write(lock, f"process {os.getpid()} ({program}) on {socket.gethostname()}".encode())
    return lock


def acquire_for_reading(path: Path) -> int:
    """Lock a file that cannot be written."""
    # Without a lock file, no process owned the store when it became read-only: any descriptor
    # works.
    if _lock_file(path).exists():
        return acquire(path, os.O_RDONLY)
    return _open(path, os.O_RDONLY)


def release(lock: int) -> None:
    """Unlock the file, even if a child process that Python did not fork has the descriptor too."""
    _locks.discard(lock)
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


_locks: set[int] = set()


def _open(path: Path, flags: int) -> int:
    lock = os.open(path, flags, 0o600)
    _locks.add(lock)
    return lock


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".owner")


def _forget_locks() -> None:
    """In a forked child: close the parent's descriptors, or the child would hold the locks after
    the parent ends. Unlocking them would release them for the parent too."""
    for lock in _locks:
        os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)
