"""The last known tenants on disk, for a start without the store.

The first line is a JSON object that describes the copy. The store's entries follow in blocks, each
preceded by its length. The first line has a digest of the blocks, which detects damage.

A copy belongs to the keys of one cluster (`Store.identity`), regardless of the URL. The identity is
unknown until the store answers, so until then a copy is used if it was saved at one of the same
addresses. `Provider` compares the identities after it has connected.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from mooring.atomic_file import DiskCopy, sweep
from mooring.model import Time, now
from mooring.store.contract import Entry
from mooring.tasks import slices

FORMAT = 2

_BLOCK = 500  # entries: encoding a block holds the interpreter for about a millisecond
_LENGTH = struct.Struct(">I")
_MAX_HEADER = 64 * 1024  # bytes
_entries = msgspec.msgpack.Decoder(list[Entry])


class Header(msgspec.Struct, frozen=True):
    format: int
    identity: str
    """`Store.identity` of the store that the entries are from."""
    addresses: tuple[str, ...]
    """Addresses of the store, as configured and as resolved; empty if they were not given."""
    namespace: str
    saved_at: Time
    revision: int
    digest: str


class CachedTenants(msgspec.Struct, frozen=True):
    identity: str
    saved_at: Time
    revision: int
    entries: Sequence[Entry]


class TenantCache:
    """The copy of one namespace of one store.

    `addresses` are those of the store: `HOST:PORT` or a path, followed by a space and the prefix of
    the store's keys if there is one. If the file does not exist, `load` uses a file in the same
    folder that was saved for another URL of the same store. Without addresses, it does not.
    """

    def __init__(self, file: Path, *, namespace: str, addresses: Collection[str] = ()) -> None:
        self._copy = DiskCopy(file, "the tenants")
        self._namespace, self._addresses = namespace, frozenset(addresses)

    @property
    def path(self) -> Path:
        return self._copy.path

    def usable(self) -> bool:
        """Whether there is a copy that seems usable. It may query DNS: call it in a thread."""
        return self._find() is not None

    def load(self) -> CachedTenants | None:
        """The saved tenants; None if there is no usable copy. Call it in a thread."""
        sweep(self.path.parent)
        path = self._find()
        return None if path is None else self._copy.read(self._parse, path)

    def _find(self) -> Path | None:
        """The file, or the newest usable one beside it."""
        if self.path.exists():
            return self.path if self._copy.read(self._header) is not None else None
        if not self._addresses:
            return None
        kind = self.path.name.rpartition(".")[0].rpartition(".")[0]
        siblings = self.path.parent.glob(f"{glob.escape(kind)}.*{self.path.suffix}")
        headers = {path: self._copy.read(self._header, path, logging.DEBUG) for path in siblings}
        saved = {path: header.saved_at for path, header in headers.items() if header is not None}
        return max(saved, key=saved.__getitem__, default=None)

    def save(self, entries: Iterable[Entry], revision: int, *, identity: str) -> None:
        """Replace the copy. A failure is logged."""
        self._copy.save(lambda file: self._write(file, entries, revision, identity))

    def _write(
        self, file: BinaryIO, entries: Iterable[Entry], revision: int, identity: str
    ) -> None:
        blocks = list(_blocks(entries))
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(block)
        addresses = tuple(sorted(self._addresses | self._resolved))
        header = Header(
            FORMAT, identity, addresses, self._namespace, now(), revision, digest.hexdigest()
        )
        file.write(msgspec.json.encode(header) + b"\n")
        file.writelines(blocks)

    def _parse(self, file: BinaryIO) -> CachedTenants:
        header = self._header(file)
        entries = _read_blocks(file.read(), header.digest)
        return CachedTenants(header.identity, header.saved_at, header.revision, entries)

    def _header(self, file: BinaryIO) -> Header:
        """Raises `ValueError` if the file is not a copy of these tenants."""
        line = file.readline(_MAX_HEADER)
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError("it is not a copy of tenants, or it is damaged") from None
        if header.format != FORMAT:
            raise ValueError(f"its format is {header.format}; only {FORMAT} is supported")
        if header.namespace != self._namespace:
            raise ValueError(
                f"it holds the namespace {header.namespace}, and {self._namespace} is needed"
            )
        if not self._shares_address(header):
            raise ValueError(
                f"it was saved at {', '.join(header.addresses)}, and the store is at "
                f"{', '.join(sorted(self._addresses))}"
            )
        return header

    def _shares_address(self, header: Header) -> bool:
        saved = header.addresses
        if not saved or not self._addresses or not self._addresses.isdisjoint(saved):
            return True
        return not self._resolved.isdisjoint(saved)

    @cached_property
    def _resolved(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(map(_resolve, self._addresses)))


def _resolve(address: str) -> Iterator[str]:
    """The address with each IP address of its host; nothing if DNS does not answer."""
    location, space, prefix = address.partition(" ")
    host, _, port = location.rpartition(":")
    if "/" in location or not port.isdecimal():
        return
    try:
        infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, sockaddr in infos:
        ip = str(sockaddr[0])
        yield f"[{ip}]:{port}{space}{prefix}" if ":" in ip else f"{ip}:{port}{space}{prefix}"


def _blocks(entries: Iterable[Entry]) -> Iterator[bytes]:
    for piece in slices(entries, _BLOCK):
        block = msgspec.msgpack.encode(piece)
        yield _LENGTH.pack(len(block)) + block


def _read_blocks(raw: bytes, digest: str) -> list[Entry]:
    """Raises `ValueError` if the blocks do not match the digest."""
    if hashlib.sha256(raw).hexdigest() != digest:
        raise ValueError("it is damaged")
    entries: list[Entry] = []
    start = 0
    while start < len(raw):
        (length,) = _LENGTH.unpack_from(raw, start)
        start += _LENGTH.size
        entries += _entries.decode(memoryview(raw)[start : start + length])
        start += length
    return entries
