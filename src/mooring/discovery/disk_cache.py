"""The last known instances of a service on disk, for a start without the registry."""

from __future__ import annotations

import hashlib
import logging
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest
from mooring.model import Instance, Time, now

log = logging.getLogger(__name__)


class Copy(msgspec.Struct, frozen=True):
    service: str
    registry: str
    saved_at: Time
    instances: tuple[Instance, ...]


class Copies:
    """A folder with one file for each service of each registry.

    `registry` tells apart whose instances are not the same: other stores, and other layouts of one.
    """

    def __init__(self, folder: Path, registry: str) -> None:
        self._folder, self._registry = folder.expanduser(), registry
        self._mark = hashlib.sha256(registry.encode()).hexdigest()[:12]

    def _file(self, service: str) -> Path:
        return self._folder / f"{urllib.parse.quote(service, safe='')}.{self._mark}.json"

    def load(self, service: str) -> Copy | None:
        """What was kept of a service; None where there is nothing that can be used."""
        file = self._file(service)
        try:
            copy = msgspec.json.decode(file.read_bytes(), type=Copy)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, InvalidRequest) as error:
            log.warning("%s cannot be used: %s", file, error)
            return None
        if (copy.registry, copy.service) != (self._registry, service):
            log.warning("%s is of another registry (%s): not used", file, copy.registry)
            return None
        return copy

    def save(self, service: str, instances: Iterable[Instance]) -> None:
        """Keep them, whole or not at all, for this user's eyes only. A disk that is full costs the
        copy, not the caller."""
        copy = Copy(service, self._registry, now(), tuple(instances))
        file = self._file(service)
        try:
            with replacing(file) as out:
                out.write(msgspec.json.encode(copy))
        except OSError as error:
            log.warning("no copy of %s is kept in %s: %s", service, file, error)
