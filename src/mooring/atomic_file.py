"""Files that are replaced atomically, and copies of the last known state in such files, for a start
while the server cannot be reached.

The new content is written to a temporary file that only this user can read, and replaces the file
when it is on disk. The writer holds a lock on the temporary file. One without a lock was left by a
process that died, and the next writer in the folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from mooring.errors import InvalidRequest

T = TypeVar("T")

log = logging.getLogger(__name__)

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


class DiskCopy:
    """One file, which each save replaces as a whole. Only the current user can read it, since it
    may hold secrets. A damaged copy is ignored, and so is one that another user may have written:
    callers connect to the hosts in it. `content` names the copied data in log messages.
    """

    def __init__(self, file: Path, content: str) -> None:
        self.path = file.expanduser()
        self._content = content
        self._saving = threading.Lock()
        self._failing = False

    def read(
        self, parse: Callable[[BinaryIO], T], path: Path | None = None, level: int = logging.WARNING
    ) -> T | None:
        """The result of `parse`, which raises `ValueError` for a file that it does not accept. None
        if the file is missing, or unusable: the reason is logged at `level`. `path` is another copy
        to read instead."""
        path = path or self.path
        try:
            with path.open("rb") as file:
                _check_owner(file)
                return parse(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, InvalidRequest) as error:
            log.log(level, "%s cannot be used: %s", path, error)
            return None

    def save(self, write: Callable[[BinaryIO], object]) -> None:
        """Replace the copy with what `write` writes. Logs a failure, such as a full disk, once and
        keeps the previous copy. Of two concurrent calls, the later one wins."""
        with self._saving:
            try:
                with replacing(self.path) as file:
                    write(file)
                self._failing = False
            except OSError as error:
                if not self._failing:
                    log.warning("no copy of %s is kept in %s: %s", self._content, self.path, error)
                self._failing = True


def _check_owner(file: BinaryIO) -> None:
    """Raises `ValueError` if another user may have written the file."""
    info = os.fstat(file.fileno())
    if info.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"another user owns it (uid {info.st_uid}): delete it")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(info.st_mode)
        raise ValueError(f"other users may write it (mode {mode:04o}): set its mode to 0600")
