"""A copy of the last known state on disk, for a start while the server cannot be reached."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest

T = TypeVar("T")

log = logging.getLogger(__name__)


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
        self,
        parse: Callable[[BinaryIO], T],
        path: Path | None = None,
        level: int = logging.WARNING,
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
