"""gRPC finds its servers: channels whose target is a service, and servers that register.

    async with mooring.grpc.aio.channel("etcdv3:///echo", hub=hub) as channel:
        answer = await EchoStub(channel).Say(Word(text="hello"))

    async with mooring.grpc.serve_and_register(server, hub, instance) as serving:
        await serving.until_stopped()

**Channels.** `aio.channel` is for asyncio: a channel of gRPC's own to each instance, and a choice
at each call by any policy of `mooring.discovery.balance`; how calls end teaches it. `channel` is
for threads: one channel to all instances, which gRPC calls in turn, exchanged for another when they
change. Both are channels to everybody who takes one. `mooring:///` is the same as `etcdv3:///`,
whatever the registry lies on.

**Who is called.** Who may be, as for `hub.discover`, has a connection, and does not say by gRPC's
health service that it does not serve. While the instances are not known, a call waits until its
deadline. Where there are none, or none can be reached, it fails at once with UNAVAILABLE and the
reason, unless it is to `wait_for_ready`. What is under way on an instance that is gone ends by
itself.

**Retries** are for methods that are named in `retry`, after UNAVAILABLE alone, on another instance,
up to so many `tries` and within the retry budget; an answer that is a stream only until its first
message, and requests that are a stream never. Interceptors see each try.
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("grpc") is None:
    raise MissingExtra("mooring.grpc", "grpc")

from mooring.grpc import aio
from mooring.grpc.blocking import Channel, channel
from mooring.grpc.health import Health
from mooring.grpc.options import CHANNEL_OPTIONS, SERVER_OPTIONS, Discovery
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
