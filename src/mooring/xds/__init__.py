"""A control plane for Envoy and for `xds:///` channels of gRPC, fed by the registry (xDS v3).

    async with mooring.connect("etcd://127.0.0.1:2379") as hub, mooring.xds.ControlPlane(hub):
        ...

`resources` (a service as xDS resources) and `subscriptions` (what to send to a client next) do no
I/O. `catalogue` follows the registry, `server` serves clients, and `bootstrap` creates the
configuration that clients start with.
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("grpc") is None:
    raise MissingExtra("mooring.xds", "server")

from mooring.etcd_server.server import ServerTLS
from mooring.xds.server import ControlPlane

__all__ = ["ControlPlane", "ServerTLS"]
