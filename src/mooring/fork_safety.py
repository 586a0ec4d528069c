"""gRPC and fork: a process that was forked while gRPC ran cannot use gRPC.

gRPC's threads stay with the parent, and what the child reads from the pipes that they share is
missing there: the parent's own watches would fall silent. After the last channel is gone gRPC stops
its threads, and a child may start it again.

gRPC has fork handlers of its own, on by default. They cannot work while `grpc.aio` runs: they skip
the parent's part and start threads in the child, which then crashes. So `mooring/__init__`
turns them off.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
from typing import TypeVar

import mooring
from mooring.errors import InvalidRequest

log = logging.getLogger(__name__)

C = TypeVar("C")


_channels: weakref.WeakSet[object] = weakref.WeakSet()
"""Those of this process that were not collected yet: gRPC runs while there is one, even if it is
closed or, a server, stopped."""
_running = False
"""Whether gRPC may run in this process."""
_inherited: list[object] = []
"""Those of the parent. They are kept, also when the interpreter ends: gRPC would close the parent's
connections with them, or wait for threads that stayed with the parent."""
_warned = False


def tracked(channel: C) -> C:
    """The same channel or server, remembered for as long as it exists."""
    global _running
    _channels.add(channel)
    _running = True
    return channel


def check_process() -> None:
    """Before each new channel. Raises `InvalidRequest` if gRPC ran when this process was forked."""
    if _inherited:
        raise InvalidRequest(
            "a gRPC channel (to etcd, or to a service) or a gRPC server was open when this process "
            "was forked, and gRPC does not survive that: close all hubs and servers before the "
            "fork, connect after it only (in gunicorn's post_fork, say), or start processes with "
            "the method spawn. A server keeps gRPC running after it has stopped too: delete the "
            "variables that refer to it before the fork (del server)"
        )


def _before_fork() -> None:
    global _running, _warned
    if _running:
        gc.collect()  # closed channels, and calls that refer to them, may be waiting for it
        _running = bool(_channels)
    if _channels and mooring.grpc_fork_handlers and not _warned:
        log.warning(
            "this process forks while gRPC runs, and its children may crash, since %s: import "
            "mooring before grpc, or set GRPC_ENABLE_FORK_SUPPORT=0 before the process starts",
            mooring.grpc_fork_handlers,
        )
        _warned = True


def _in_child() -> None:
    global _running
    if not _channels:
        _running = False
        return
    import ctypes

    for channel in _channels:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
        _inherited.append(channel)
    _channels.clear()
    _running = False


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
