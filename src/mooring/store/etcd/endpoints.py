"""The members of an etcd cluster, and the choice of the member that a client uses.

Each client has its own random order of preference and uses the first member that serves. So clients
are spread evenly over the serving members. A client that had to leave a member returns to it
minutes after it serves again, at a random time: after a rolling restart the clients are spread as
before, and no member gets all of them at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from mooring.errors import Closed
from mooring.fork_safety import open_channel
from mooring.messages import message
from mooring.store.etcd.proto import Methods

MAX_MESSAGE = 64 * 1024 * 1024

_OPTIONS = [
    # Servers close connections with pings faster than every 10 s; the progress requests of the
    # watch stream detect failures sooner. `grpc.keepalive_timeout_ms` has no effect.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", -1),
    # gRPC's backoff grows up to two minutes; here the caller decides when to retry.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class EtcdEndpoint:
    """One server of the cluster and its channel."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, server_name: str
    ) -> None:
        self.address = address
        self.down_since = 0.0
        """When it stopped serving, on the monotonic clock; 0 while it serves."""
        self.heard = 0.0
        """The time of its last response, on the monotonic clock."""
        self._credentials = credentials
        self._options: list[tuple[str, int | str]] = [*_OPTIONS]
        if server_name:
            self._options.append(("grpc.ssl_target_name_override", server_name))
        self._made = 0.0
        self._connect()

    def _connect(self) -> None:
        credentials, options = self._credentials, self._options
        self.channel = open_channel(grpc.aio, self.address, credentials, options=options)
        self.methods = Methods(self.channel)
        self._made = time.monotonic()

    def release(self) -> None:
        """Drop the closed channel. gRPC ends its threads with the last one."""
        released: Any = _Released(self.address)
        self.channel = self.methods = released

    def answered(self) -> None:
        self.down_since = 0.0
        self.heard = time.monotonic()

    def reconnect(self) -> grpc.aio.Channel | None:
        """Use a new connection, since a gone peer stays "ready" for gRPC for 15 s. Returns the old
        channel, for the caller to close."""
        if time.monotonic() - self._made < 1.0:
            return None
        old = self.channel
        self._connect()
        return old


class _Released:
    """Stands for the channel of a closed endpoint."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __getattr__(self, _: str) -> Any:
        raise Closed(message("connection_closed", endpoint=self._address))


class Preference:
    """The order of preference of one client, and the member in use."""

    def __init__(self, members: Sequence[EtcdEndpoint]) -> None:
        self._order = random.sample(members, len(members))
        self.current = self._order[0]

    @property
    def better(self) -> Sequence[EtcdEndpoint]:
        """The members to return to once they serve again, the best one first."""
        return self._order[: self._order.index(self.current)]

    def failed(self, member: EtcdEndpoint, now: float) -> None:
        """Use another member: the first that serves, or the one that failed longest ago."""
        member.down_since = now
        if member is self.current:
            self.current = min(self._order, key=lambda candidate: candidate.down_since)
