"""What was last read of the tenants, in a file, for a start without the store.

The first line is a JSON object that says whose copy it is; then come the entries as they were in
the store, in blocks, each with its length before it. A digest of the blocks stands in the first
line: a file that was damaged is not believed. It holds passwords: it is for its owner's eyes only.

A copy belongs to the keys of one cluster (`Store.identity`), whatever the URL that was used. While
the store cannot be reached its identity is not known: then a copy is used if it was made at one of
the same addresses. `Provider` compares the identity once it is connected.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from mooring.atomic_file import replacing, sweep
from mooring.model import Time, now
from mooring.store.contract import Entry

log = logging.getLogger(__name__)

FORMAT = 2

_BLOCK = 500  # entries: each holds the interpreter for a millisecond
_LENGTH = struct.Struct(">I")
_HEAD = 64 * 1024  # bytes that the first line has at most
_entries = msgspec.msgpack.Decoder(list[Entry])


class Head(msgspec.Struct, frozen=True):
    format: int
    identity: str
    """`Store.identity` of the store that it was read from."""
    addresses: tuple[str, ...]
    """Those of the store, as configured and as resolved; empty if they were not given."""
    namespace: str
    saved_at: Time
    revision: int
    digest: str


class Copy(msgspec.Struct, frozen=True):
    identity: str
    saved_at: Time
    revision: int
    entries: Sequence[Entry]


class CopyFile:
    """The file of one namespace of one store.

    `addresses` are those of the store: `HOST:PORT` each, or a path, and then a space and the prefix
    of the store's keys if there is one. If the file does not exist, a file beside it is used that
    was made by another URL of the same store. Without addresses only the file itself is used.
    """

    def __init__(self, file: Path, *, namespace: str, addresses: Collection[str] = ()) -> None:
        self.path = file.expanduser()
        self._namespace, self._addresses = namespace, frozenset(addresses)
        self._turn = threading.Lock()
        self._failing = False

    def usable(self) -> bool:
        """Whether there is one that seems to be of use. It may ask DNS: call it in a thread."""
        return self._find() is not None

    def load(self) -> Copy | None:
        """What was kept; None where there is nothing that can be used. Call it in a thread."""
        sweep(self.path.parent)
        found = self._find()
        if found is None:
            return None
        try:
            with found.open("rb") as file:
                _check_owner(file)
                head = self._head(file)
                return Copy(head.identity, head.saved_at, head.revision, _read(file, head))
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s", found, error)
            return None

    def _find(self) -> Path | None:
        """The file, or the newest one beside it that is of the same store."""
        if self.path.exists():
            return self.path if self._usable_head(self.path) is not None else None
        if not self._addresses:
            return None
        kind = self.path.name.rpartition(".")[0].rpartition(".")[0]
        beside = self.path.parent.glob(f"{glob.escape(kind)}.*{self.path.suffix}")
        heads = {path: self._usable_head(path, quietly=True) for path in beside}
        saved = {path: head.saved_at for path, head in heads.items() if head is not None}
        return max(saved, key=saved.__getitem__, default=None)

    def _usable_head(self, path: Path, *, quietly: bool = False) -> Head | None:
        try:
            with path.open("rb") as file:
                _check_owner(file)
                return self._head(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.log(
                logging.DEBUG if quietly else logging.WARNING, "%s cannot be used: %s", path, error
            )
            return None

    def save(self, entries: Iterable[Entry], revision: int, *, identity: str) -> None:
        """Keep them, whole or not at all. A disk that is full costs the copy, not the caller.

        Of two at once the later one is there at the end: nobody cancels a thread.
        """
        with self._turn:
            self._replace(entries, revision, identity)

    def _replace(self, entries: Iterable[Entry], revision: int, identity: str) -> None:
        try:
            with replacing(self.path) as out:
                self._write(out, entries, revision, identity)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("no copy of the tenants is kept in %s: %s", self.path, error)
            self._failing = True

    def _write(self, out: BinaryIO, entries: Iterable[Entry], revision: int, identity: str) -> None:
        blocks = list(_blocks(entries))
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
        addresses = tuple(sorted(self._addresses | self._resolved))
        head = Head(
            FORMAT, identity, addresses, self._namespace, now(), revision, digest.hexdigest()
        )
        out.write(msgspec.json.encode(head) + b"\n")
        out.writelines(blocks)

    def _head(self, file: BinaryIO) -> Head:
        """Raises `ValueError` if the file is not a copy, or was made elsewhere."""
        line = file.readline(_HEAD)
        try:
            head = msgspec.json.decode(line, type=Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError("it is no copy of tenants, or damaged") from None
        if head.format != FORMAT:
            raise ValueError(f"its format is {head.format}, and {FORMAT} is known here")
        if head.namespace != self._namespace:
            raise ValueError(
                f"it holds the namespace {head.namespace}, and {self._namespace} is needed"
            )
        if not self._shares_address(head):
            raise ValueError(
                f"it was made at {', '.join(head.addresses)}, and the store is at "
                f"{', '.join(sorted(self._addresses))}"
            )
        return head

    def _shares_address(self, head: Head) -> bool:
        theirs = head.addresses
        if not theirs or not self._addresses or not self._addresses.isdisjoint(theirs):
            return True
        return not self._resolved.isdisjoint(theirs)

    @cached_property
    def _resolved(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(map(_resolve, self._addresses)))


def _resolve(address: str) -> Iterator[str]:
    """An address with each IP address of its host; none if DNS does not answer."""
    where, space, prefix = address.partition(" ")
    host, _, port = where.rpartition(":")
    if "/" in where or not port.isdecimal():
        return
    try:
        infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, sockaddr in infos:
        ip = str(sockaddr[0])
        yield f"[{ip}]:{port}{space}{prefix}" if ":" in ip else f"{ip}:{port}{space}{prefix}"


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
