"""Turns off gRPC's fork handlers when `mooring` is imported; `mooring.store.etcd.fork_safety` says
why. A module of its own, so that programs without etcd do not import gRPC for it."""

from __future__ import annotations

import os
import sys

VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"

unguarded = ""
"""Why gRPC's fork handlers are on; empty if they are off."""


def guard() -> None:
    """Turn off gRPC's fork handlers. gRPC reads the variable when it is first imported, so this is
    called when `mooring` is, before any module of ours imports gRPC."""
    global unguarded
    value = os.environ.setdefault(VARIABLE, "")
    if value.lower() not in ("", "0", "false", "no"):
        unguarded = f"{VARIABLE} is set to {value}"
    elif not value:
        os.environ[VARIABLE] = "0"
        if "grpc._cython.cygrpc" in sys.modules:
            unguarded = "grpc was imported before mooring"
