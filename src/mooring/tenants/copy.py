"""What was last read of the tenants, in a file, for a start without the store.

The first line is a JSON object that says whose copy it is; then come the entries as they were in
the store, in blocks, each with its length before it. A digest of the blocks stands in the first
line: a file that was damaged is not believed. It holds passwords: it is for its owner's eyes only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from mooring.model import Time, now
from mooring.replacement import replacing, sweep
from mooring.store.contract import Entry

log = logging.getLogger(__name__)

FORMAT = 1

_BLOCK = 500  # entries: each holds the interpreter for a millisecond
_LENGTH = struct.Struct(">I")
_HEAD = 4096  # bytes that the first line has at most
_entries = msgspec.msgpack.Decoder(list[Entry])


class Head(msgspec.Struct, frozen=True):
    format: int
    store: str
    namespace: str
    saved_at: Time
    revision: int
    digest: str


class Copy(msgspec.Struct, frozen=True):
    saved_at: Time
    revision: int
    entries: Sequence[Entry]


class CopyFile:
    """The file of one namespace of one store."""

    def __init__(self, file: Path, *, store: str, namespace: str) -> None:
        self.path = file.expanduser()
        self._store, self._namespace = store, namespace
        self._turn = threading.Lock()
        self._failing = False

    def usable(self) -> bool:
        """Whether there is one that seems to be of use."""
        try:
            with self.path.open("rb") as file:
                _check_owner(file)
                self._head(file)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s", self.path, error)
            return False
        return True

    def load(self) -> Copy | None:
        """What was kept; None where there is nothing that can be used."""
        sweep(self.path.parent)
        try:
            with self.path.open("rb") as file:
                _check_owner(file)
                head = self._head(file)
                return Copy(head.saved_at, head.revision, _read(file, head))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s", self.path, error)
            return None

    def save(self, entries: Iterable[Entry], revision: int) -> None:
        """Keep them, whole or not at all. A disk that is full costs the copy, not the caller.

        Of two at once the later one is there at the end: nobody cancels a thread.
        """
        with self._turn:
            self._replace(entries, revision)

    def _replace(self, entries: Iterable[Entry], revision: int) -> None:
        try:
            with replacing(self.path) as out:
                self._write(out, entries, revision)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("no copy of the tenants is kept in %s: %s", self.path, error)
            self._failing = True

    def _write(self, out: BinaryIO, entries: Iterable[Entry], revision: int) -> None:
        blocks = list(_blocks(entries))
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
        head = Head(FORMAT, self._store, self._namespace, now(), revision, digest.hexdigest())
        out.write(msgspec.json.encode(head) + b"\n")
        out.writelines(blocks)

    def _head(self, file: BinaryIO) -> Head:
        """Raises `ValueError` where the file is no copy, or not of this store."""
        line = file.readline(_HEAD)
        try:
            head = msgspec.json.decode(line, type=Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError("it is no copy of tenants, or damaged") from None
        if head.format != FORMAT:
            raise ValueError(f"its format is {head.format}, and {FORMAT} is known here")
        if (head.store, head.namespace) != (self._store, self._namespace):
            raise ValueError(
                f"it is of {head.namespace!r} in {head.store}, and not of {self._namespace!r} in "
                f"{self._store}"
            )
        return head


def _check_owner(file: BinaryIO) -> None:
    """Raises `ValueError` if another user may have written it: services would use the databases
    that it names."""
    about = os.fstat(file.fileno())
    if about.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"another user owns it (uid {about.st_uid}): delete it")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(about.st_mode)
        raise ValueError(f"other users may write it (mode {mode:04o}): set its mode to 0600")


def _blocks(entries: Iterable[Entry]) -> Iterable[bytes]:
    held = list(entries)
    for start in range(0, len(held), _BLOCK):
        block = msgspec.msgpack.encode(held[start : start + _BLOCK])
        yield _LENGTH.pack(len(block)) + block


def _read(file: BinaryIO, head: Head) -> list[Entry]:
    """Raises `ValueError` where it is not what was written."""
    raw = file.read()
    if hashlib.sha256(raw).hexdigest() != head.digest:
        raise ValueError("it is damaged")
    entries: list[Entry] = []
    at = 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        entries += _entries.decode(memoryview(raw)[at : at + length])
        at += length
    return entries
