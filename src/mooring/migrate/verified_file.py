"""A file of what was verified: `verify` writes it, and `delete` deletes only what it lists.

One JSON object a line; the first, its header, says of which migration it is, and its format.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from mooring.errors import InvalidRequest, MigrationError, MooringError, misplaced

H = TypeVar("H", bound=msgspec.Struct)
L = TypeVar("L", bound=msgspec.Struct)


def write(path: Path, header: msgspec.Struct, lines: Iterable[msgspec.Struct]) -> None:
    """Put it where it belongs at once, readable for its owner alone: what it lists may be secret.
    Raises `MigrationError` where it cannot be written."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as output:
            for line in (header, *lines):
                output.write(json.dumps(msgspec.to_builtins(line)) + "\n")
            output.flush()
            os.fsync(output.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise _cannot(path, "written", error) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def discard(path: Path) -> None:
    """What was verified once no longer counts."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot(path, "removed", error) from error


def read(path: Path, header: type[H], line: type[L], *, format: str) -> tuple[H, list[L]]:
    """Raises `MigrationError` where it is not there, and `InvalidRequest` for any other file."""
    try:
        first, *rest = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        head = msgspec.convert(first, header)
        lines = [msgspec.convert(each, line) for each in rest]
    except FileNotFoundError:
        raise MigrationError(
            f"{path} is not there: nothing is deleted before `verify` found no difference"
        ) from None
    except OSError as error:
        raise _cannot(path, "read", error) from error
    except ValueError as error:  # no JSON, no text, or other JSON
        raise InvalidRequest(f"{path} is not what `verify` writes: name that file") from error
    if first["format"] != format:
        raise MigrationError(f"{path} is of another version: run `verify` again")
    return head, lines


def _cannot(path: Path, what: str, error: OSError) -> MooringError:
    kind = InvalidRequest if misplaced(error) else MigrationError
    return kind(f"{path} cannot be {what}: {error.strerror}")
