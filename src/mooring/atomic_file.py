"""Files that are replaced whole or not at all, and leave nothing behind that somebody could read.

A new state is written beside the old one, for this user's eyes only, and takes its place when it is
on the disk. Who writes holds a lock on it: one that nobody holds was left by a process that died in
the middle, and is removed by the next one who writes there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_UNFINISHED = ".unfinished-"


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """What is written takes the place of the file at the end, unless something is raised. The
    folder is made where there is none. Raises `OSError`."""
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(folder)
    descriptor, name = _begin(folder)
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(descriptor)
            os.replace(name, file)  # while it is locked
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def sweep(folder: Path) -> None:
    """Remove what was left unfinished in a folder by processes that are gone."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(OSError):  # locked, or not ours, or gone by now
                _remove(left)


def _begin(folder: Path) -> tuple[int, str]:
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=_UNFINISHED)  # 0600
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # swept away before it was locked


def _remove(left: Path) -> None:
    descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left.unlink()
    finally:
        os.close(descriptor)
