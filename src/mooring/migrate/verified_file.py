"""The file of verified data: `verify` writes it, and `delete` deletes only what it lists.

It has one JSON object per line. The first line is a header that identifies the migration and the
format of the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest, MigrationError, MooringError, misplaced

H = TypeVar("H", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class Verified(NamedTuple, Generic[H, T]):
    header: H
    items: Sequence[T]

    def check_header(self, header: H) -> None:
        """Raise `MigrationError` if these items belong to another migration."""
        if self.header != header:
            raise MigrationError(
                f"the file is from another migration, {self.header}; this one is {header}"
            )


def write(path: Path, verified: Verified[H, T]) -> None:
    """Replace the file atomically, readable by its owner only: it may contain secrets. Raises
    `MigrationError` if it cannot be written."""
    try:
        path.parent.resolve(strict=True)  # a folder that does not exist is an error
        with replacing(path) as output:
            for line in (verified.header, *verified.items):
                fields = msgspec.to_builtins(line, order="deterministic")
                output.write(f"{json.dumps(fields)}\n".encode("ascii"))
    except OSError as error:
        raise _file_error(path, "written", error) from error


def discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _file_error(path, "removed", error) from error


def read(path: Path, header_type: type[H], item_type: type[T], *, format: str) -> Verified[H, T]:
    """Raises `MigrationError` for a missing file, `InvalidRequest` for any other file."""
    try:
        first, *rest = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        header = msgspec.convert(first, header_type)
        items = [msgspec.convert(line, item_type) for line in rest]
    except FileNotFoundError:
        raise MigrationError(
            f"{path} does not exist: run `verify` first; nothing is deleted before it finds no "
            "difference"
        ) from None
    except OSError as error:
        raise _file_error(path, "read", error) from error
    except ValueError as error:  # not text, not JSON, or other JSON
        raise InvalidRequest(
            f"{path} was not written by `verify`: pass the file that `verify` wrote"
        ) from error
    if first["format"] != format:
        raise MigrationError(f"{path} has the format of another version: run `verify` again")
    return Verified(header, items)


def _file_error(path: Path, action: str, error: OSError) -> MooringError:
    kind = InvalidRequest if misplaced(error) else MigrationError
    return kind(f"{path} cannot be {action}: {error.strerror}")
