"""gRPC servers that register while they serve, and channels whose target is a service.

async with mooring.grpc.serve_and_register(server, hub, instance) as serving:
    await serving.until_stopped()
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("grpc") is None:
    raise MissingExtra("mooring.grpc", "grpc")

from mooring.grpc.blocking import Channel, channel
from mooring.grpc.choosing import Discovery
from mooring.grpc.health import Health
from mooring.grpc.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from mooring.grpc.serving import BlockingServing, Serving, serve_and_register

__all__ = [
    "CHANNEL_OPTIONS",
    "SERVER_OPTIONS",
    "BlockingServing",
    "Channel",
    "Discovery",
    "Health",
    "Serving",
    "channel",
    "serve_and_register",
]
