"""gRPC and fork: a process that was forked while gRPC ran cannot use gRPC.

gRPC's threads exist only in the parent, and whatever the child reads from the shared pipes is lost
to the parent, so that its watches would fall silent. gRPC stops its threads after the last channel
is gone; a child that is forked then can start it again.

gRPC has fork handlers, on by default. They do not work while `grpc.aio` runs: they skip the
parent's part and start threads in the child, which then crashes. So `mooring/__init__` turns them
off.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import weakref
from typing import Any, TypeVar

from mooring.errors import InvalidRequest

log = logging.getLogger(__name__)

C = TypeVar("C")


_channels: weakref.WeakSet[object] = weakref.WeakSet()
"""The channels and servers of this process. gRPC runs while one exists, even if it is closed or
stopped."""
_calls: weakref.WeakSet[object] = weakref.WeakSet()
"""Blocking calls in flight. gRPC cancels a call that is freed, and a child would reset the parent's
stream on the shared connection."""
_running = False
"""Whether gRPC may run in this process."""
_inherited: list[object] = []
"""The channels and servers of the parent. They are kept even when the interpreter ends: freeing
them would close the parent's connections, or wait for threads that exist only in the parent."""
_warned = False


def tracked(channel: C) -> C:
    """Track a channel or server for as long as it exists, and return it."""
    global _running
    _channels.add(channel)
    _running = True
    return channel


def open_channel(api: Any, target: str, credentials: object = None, **options: object) -> Any:
    """A channel of `grpc` or `grpc.aio`, the `api`. Raises `InvalidRequest` as `check_process`."""
    check_process()
    # Keyword arguments: instrumentation that wraps these functions expects them.
    if credentials is None:
        return tracked(api.insecure_channel(target, **options))
    return tracked(api.secure_channel(target, credentials, **options))


def kept_in_children(call: C) -> C:
    """Keep a call in children that are forked meanwhile, and return it."""
    _calls.add(call)
    return call


def check_process() -> None:
    """Raises `InvalidRequest` if gRPC ran when this process was forked."""
    if _inherited:
        raise InvalidRequest(
            "a gRPC channel (to etcd, or to a service) or a gRPC server was open when this process "
            "was forked, and gRPC does not survive that: close all hubs and servers before the "
            "fork, or connect only after it (for example in gunicorn's post_fork), or start "
            "processes with the method spawn. A stopped server also keeps gRPC running: delete "
            "the variables that refer to it before the fork (del server)"
        )


def _before_fork() -> None:
    global _running, _warned
    if _running:
        gc.collect()  # frees closed channels and the calls that refer to them
        _running = bool(_channels)
    # Not an import: `mooring` imports the modules that import this one.
    reason = sys.modules["mooring"].grpc_fork_handlers
    if _channels and reason and not _warned:
        log.warning(
            "this process forks while gRPC runs, and its children may crash, since %s: import "
            "mooring before grpc, or set GRPC_ENABLE_FORK_SUPPORT=0 before the process starts",
            reason,
        )
        _warned = True


def _in_child() -> None:
    global _running
    if not _channels:
        _running = False
        return
    import ctypes

    _inherited.extend(_channels)
    for kept in (*_channels, *_calls):  # even when the interpreter ends
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _channels.clear()
    _calls.clear()
    _running = False


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
