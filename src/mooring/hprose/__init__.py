"""Hprose (contract H): servers register under domains, clients discover and call them.

    async with mooring.connect("etcd://127.0.0.1:2379", layout="hprose") as hub:
        async with mooring.hprose.register(hub, "http.hello", "http://10.0.0.5:8080/"): ...
        async with mooring.hprose.client(hub, "http.hello") as remote:
            print(await remote.hello("world"))

With a hub of `mooring.sync`, both are blocking: `with`, and no `await`.
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("hprose") is None:
    raise MissingExtra("mooring.hprose", "hprose")

from mooring.hprose.client import BlockingClient, Client, client, transport
from mooring.hprose.failover import Server
from mooring.hprose.server import Registered, register

__all__ = [
    "BlockingClient",
    "Client",
    "Registered",
    "Server",
    "client",
    "register",
    "transport",
]
