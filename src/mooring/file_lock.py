"""Locks on files, which end with the process that holds them, whatever it forked meanwhile; and the
lock with which one process owns a store."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from pathlib import Path

from mooring.errors import InUse
from mooring.messages import message, verbatim

_descriptors: set[int] = set()
_changing = threading.Lock()


def open_lock(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file to lock it."""
    with _changing:
        descriptor = os.open(path, flags, 0o600)
        _descriptors.add(descriptor)
        return descriptor


def close_lock(descriptor: int) -> None:
    with _changing:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _forget_locks() -> None:
    """In a forked child: close the parent's descriptors, or the child would hold the locks after
    the parent ends. Unlocking them would release them for the parent too."""
    global _changing
    _changing = threading.Lock()
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_forget_locks)


def acquire(path: Path, flags: int) -> int:
    """Own the store in a file until this process ends or releases it. Returns the descriptor of the
    lock. Raises `InUse`, which names the process that holds it."""
    lock = open_lock(_owner_file(path), flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 1000).decode(errors="replace")
        release(lock)
        raise InUse(
            message(
                "file_in_use",
                path=str(path),
                holder=verbatim(holder) if holder else message("another_process"),
            )
        ) from None
    if flags & os.O_RDWR:
        os.ftruncate(lock, 0)
        program = Path(sys.argv[0]).name or "python"
        os.write(lock, f"process {os.getpid()} ({program}) on {socket.gethostname()}".encode())
    return lock


def acquire_for_reading(path: Path) -> int:
    """As `acquire`, for a file that cannot be written."""
    # Without a lock file, no process owned the store when it became read-only: any descriptor
    # works.
    if _owner_file(path).exists():
        return acquire(path, os.O_RDONLY)
    return open_lock(path, os.O_RDONLY)


def release(lock: int) -> None:
    """Unlock the file, even if a child process that Python did not fork has the descriptor too."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    close_lock(lock)


def _owner_file(path: Path) -> Path:
    return path.with_name(path.name + ".owner")
