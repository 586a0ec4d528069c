"""The last known instances of a service on disk, for a start without the registry."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from mooring.disk_copy import DiskCopy
from mooring.model import Instance, Time, now


class CachedInstances(msgspec.Struct, frozen=True):
    service: str
    registry: str
    saved_at: Time
    instances: tuple[Instance, ...]


class InstanceCache:
    """The copy of one service in a folder.

    `registry` distinguishes registries with different instances: other stores, and other layouts of
    the same store.
    """

    def __init__(self, folder: Path, registry: str, service: str) -> None:
        self._registry, self._service = registry, service
        digest = hashlib.sha256(registry.encode()).hexdigest()[:12]
        file = folder / f"{urllib.parse.quote(service, safe='')}.{digest}.json"
        self._copy = DiskCopy(file, service)

    def load(self) -> CachedInstances | None:
        """The saved instances; None if there is no usable copy."""
        return self._copy.read(self._parse)

    def _parse(self, file: BinaryIO) -> CachedInstances:
        cached = msgspec.json.decode(file.read(), type=CachedInstances)
        if (cached.registry, cached.service) != (self._registry, self._service):
            raise ValueError(f"it is of another registry ({cached.registry})")
        return cached

    def save(self, instances: Iterable[Instance]) -> None:
        cached = CachedInstances(self._service, self._registry, now(), tuple(instances))
        self._copy.save(lambda file: file.write(msgspec.json.encode(cached)))
