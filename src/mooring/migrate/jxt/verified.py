"""What may be deleted: written by `verify` into a file, and read by `delete` from it.

One JSON object a line; the first says which migration it is. Keys are listed with the revision at
which they were written: one that was written since is not deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mooring.errors import InvalidRequest

_FORMAT = "mooring jxt verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    """Where it is, without any password."""
    namespace: str
    format: str = _FORMAT

    def __str__(self) -> str:
        return f"the namespace {self.namespace!r} in {self.store}"


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: int
    key: str
    modified: int


class Verified(msgspec.Struct, frozen=True):
    header: Header
    listed: Sequence[Listed]

    @property
    def units(self) -> Mapping[int, list[Listed]]:
        found: dict[int, list[Listed]] = {}
        for each in self.listed:
            found.setdefault(each.unit, []).append(each)
        return found


def write(path: Path, verified: Verified) -> None:
    """Put it where it belongs at once. Raises `InvalidRequest` where it cannot be written."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as output:
            for line in (verified.header, *verified.listed):
                output.write(json.dumps(msgspec.to_builtins(line)) + "\n")
            output.flush()
            os.fsync(output.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """What was verified once no longer counts."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be removed: {error.strerror}") from error


def read(path: Path) -> Verified:
    """Raises `InvalidRequest` where it is not there, or no such file."""
    try:
        first, *rest = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        header = msgspec.convert(first, Header)
        listed = [msgspec.convert(line, Listed) for line in rest]
    except FileNotFoundError:
        raise InvalidRequest(
            f"{path} is not there: nothing is deleted before `verify` found no difference"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no JSON, no text, or other JSON
        raise InvalidRequest(f"{path} is not what `verify` writes: {error}") from error
    if header.format != _FORMAT:
        raise InvalidRequest(f"{path} is of another version: run `verify` again")
    return Verified(header, listed)
