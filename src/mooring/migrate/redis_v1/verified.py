"""What was verified, as a file: all that may be deleted from v1, with what it held. It is a copy of
v1, too, for whoever wants that back.

The first line says which registry, the following hold one service each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mooring.errors import InvalidRequest
from mooring.migrate.redis_v1.plan import DIFFERENT, Found, Step

_FORMAT = "mooring redis-v1 verified 1"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    registry: str
    """Where it is, without any password."""
    v1_prefix: str
    v2_prefix: str
    format: str = _FORMAT


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: str
    hashes: dict[str, dict[str, str]]
    members: list[str]
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verified:
    header: Header
    services: Mapping[str, Found]


def deletable(found: Found, steps: Iterable[Step]) -> Found:
    """What may go of a service: what v2 has, what has expired, what is of no use to anybody. What
    cannot be understood stays."""
    stays = {"unreadable", *DIFFERENT}
    return found.only(step.id for step in steps if step.verdict not in stays)


def since(before: Found, after: Found, steps: Iterable[Step]) -> list[str]:
    """What happened to a service of v1 since it was verified; `steps` are about `after`. What is
    gone by now is no matter."""
    told: list[str] = []
    known = set(before.ids)
    for step in steps:
        id = step.id
        if step.verdict in ("unreadable", "surplus"):
            continue
        if id not in known:
            told.append(f"{step.service} {id} came")
        elif after.hashes.get(id, {}) not in ({}, before.hashes.get(id, {})):
            told.append(f"{step.service} {id} was registered again, or changed")
        elif after.scores.get(id) not in (None, before.scores.get(id)):
            told.append(f"{step.service} {id} gave a sign of life")
    return told


def write(path: Path, verified: Verified) -> None:
    """Put it where it belongs at once, readable for its owner alone: metadata may be secret.

    Raises:
        InvalidRequest: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    lines = [msgspec.to_builtins(verified.header), *map(_record, verified.services.values())]
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as output:
            output.writelines(json.dumps(line) + "\n" for line in lines)
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
    """Raises:
    InvalidRequest: it is not there, or no such file.
    """
    try:
        first, *rest = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        header = msgspec.convert(first, Header)
        lines = [msgspec.convert(line, _Line) for line in rest]
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
    services = {
        line.service: Found(line.service, line.hashes, frozenset(line.members), line.scores)
        for line in lines
    }
    return Verified(header, services)


def _record(found: Found) -> dict[str, object]:
    return {
        "service": found.service,
        "hashes": found.hashes,
        "members": sorted(found.members),
        "scores": found.scores,
    }
