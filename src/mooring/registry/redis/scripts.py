"""The scripts, as they are sent: by their digest, and whole to a Redis that does not know them."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    name: str
    text: str
    digest: str


def _load(name: str) -> Script:
    folder = files("mooring.registry.redis") / "scripts"
    shared = "" if name in ("list", "lead", "note") else (folder / "record.lua").read_text()
    text = shared + (folder / f"{name}.lua").read_text()
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


REGISTER = _load("register")
HEARTBEAT = _load("heartbeat")
DEREGISTER = _load("deregister")
CLEANUP = _load("cleanup")
LIST = _load("list")
EDIT = _load("edit")
FORGET = _load("forget")
LEAD = _load("lead")
NOTE = _load("note")
RELEASE = _load("release")
STATE = _load("state")
