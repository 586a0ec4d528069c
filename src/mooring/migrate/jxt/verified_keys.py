"""What may be deleted: written by `verify` into a file, and read by `delete` from it.

One JSON object a line; the first says which migration it is. Keys are listed with the revision at
which they were written: one that was written since is not deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mooring.formatting import quoted
from mooring.migrate import verified_file as listing

_FORMAT = "mooring jxt verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    """Where it is, without any password."""
    namespace: str
    format: str = _FORMAT

    def __str__(self) -> str:
        return f"the namespace {quoted(self.namespace)} in {self.store}"


class VerifiedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: int
    key: str
    modified: int


class Verified(msgspec.Struct, frozen=True):
    header: Header
    listed: Sequence[VerifiedKey]

    @property
    def units(self) -> Mapping[int, list[VerifiedKey]]:
        found: dict[int, list[VerifiedKey]] = {}
        for each in self.listed:
            found.setdefault(each.unit, []).append(each)
        return found


def write(path: Path, verified: Verified) -> None:
    """Raises `MigrationError` where it cannot be written."""
    listing.write(path, verified.header, verified.listed)


def read(path: Path) -> Verified:
    """Raises `MigrationError` where it is not there, or no such file."""
    return Verified(*listing.read(path, Header, VerifiedKey, format=_FORMAT))
