"""Files that are replaced atomically.

The new content is written to a temporary file that only this user can read, and replaces the file
when it is on disk. The writer holds a lock on the temporary file. One without a lock was left by a
process that died, and the next writer in the folder removes it.
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

_TEMPORARY = ".unfinished-"


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Write the new content of a file. It replaces the file at the end, unless the block raises.
    Creates the folder. Raises `OSError`."""
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(folder)
    descriptor, name = _create(folder)
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
    """Remove the temporary files that dead processes left in a folder."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):  # it is locked, not ours, or removed already
                _remove(left)


def _create(folder: Path) -> tuple[int, str]:
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)  # 0600
        with contextlib.suppress(OSError):  # a file system without locks: there, nothing is removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # another writer removed it before it was locked


def _remove(left: Path) -> None:
    descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left.unlink()
    finally:
        os.close(descriptor)
