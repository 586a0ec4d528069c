"""The scripts of this migration; they share what the registry's scripts share."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from mooring.registry.redis.scripts import Script


def _load(name: str) -> Script:
    shared = (files("mooring.registry.redis") / "scripts" / "record.lua").read_text()
    own = (files("mooring.migrate.redis_v1") / "scripts" / f"{name}.lua").read_text()
    text = shared + own
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


BRING = _load("bring")
LEAVE = _load("leave")
MIRROR = _load("mirror")
FORGET = _load("forget")
