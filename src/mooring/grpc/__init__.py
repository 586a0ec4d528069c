"""gRPC channels whose target is a service, and gRPC servers that register.

    async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel:
        answer = await EchoStub(channel).Say(Word(text="hello"))

    async with mooring.grpc.serve_and_register(server, hub, instance) as serving:
        await serving.until_stopped()

**Channels.** `aio.channel` is for asyncio: it has a gRPC channel to each instance, and picks one
for each call by any policy of `mooring.discovery.balance`, which learns from the results. `channel`
is for threads: it has one gRPC channel to all instances, which gRPC calls in turn, and replaces it
when they change. Code that takes a gRPC channel takes both. `mooring:///` means the same as
`etcdv3:///`, for every kind of registry.

**Instances.** An instance is called if `hub.discover` would call it, it has a connection, and its
gRPC health service does not report NOT_SERVING. Before the first list arrives, a call waits until
its deadline. If there is no instance, or none can be reached, it fails at once with UNAVAILABLE and
the reason, unless it has `wait_for_ready`. Calls in flight finish on instances that left.

**Retries** apply to the methods named in `retry`, after UNAVAILABLE only, on another instance, for
at most `tries` attempts and within the retry budget. A response stream is retried only before its
first message, a request stream never. Interceptors see each attempt.
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("grpc") is None:
    raise MissingExtra("mooring.grpc", "grpc")

from mooring.discovery.view import DiscoveryOptions as Discovery
from mooring.grpc import aio
from mooring.grpc.blocking import Channel, channel
from mooring.grpc.health import Health
from mooring.grpc.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from mooring.grpc.server import BlockingServing, Serving, serve_and_register

__all__ = [
    "CHANNEL_OPTIONS",
    "SERVER_OPTIONS",
    "BlockingServing",
    "Channel",
    "Discovery",
    "Health",
    "Serving",
    "aio",
    "channel",
    "serve_and_register",
]
