"""The package as a whole: its public names and its imports."""

from __future__ import annotations

from pathlib import Path

import mooring.heartbeat
from tests.unit.test_layers import imports


def test_every_public_name_exists():
    for name in mooring.heartbeat.__all__:
        assert getattr(mooring.heartbeat, name) is not None


def test_it_does_not_import_stores_or_sessions():
    below = {
        "durations",
        "errors",
        "formatting",
        "heartbeat",
        "messages",
        "model",
        "names",
        "settings",
        "tasks",
    }
    for file in Path(mooring.heartbeat.__file__).parent.rglob("*.py"):
        parts = {t.split(".")[1] for t in imports(file) if t.startswith("mooring.")}
        assert parts <= below, file
