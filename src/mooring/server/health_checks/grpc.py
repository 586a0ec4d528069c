"""gRPC: the health service (`grpc.health.v1`) says that the server as a whole is serving.

One that has no such service answers all the same, which only a living server does.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import grpc.aio

from mooring import addresses
from mooring.grpc.health import SERVICE, Status, encoded
from mooring.server.health_checks.checker import Outcome, Target
from mooring.server.health_checks.connect import Unhealthy, attempt
from mooring.store.etcd.grpc_shutdown import settled

_OPTIONS = (
    # A proxy of the environment would connect elsewhere, to where it looks up itself.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
)


class GRPCChecker:
    """With credentials over TLS, as grpcs."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials

    async def check(self, target: Target, *, timeout: float) -> Outcome:
        async def ask() -> None:
            channel = self._channel(target)
            try:
                answer: bytes = await channel.unary_unary(f"/{SERVICE}/Check")(b"", timeout=timeout)
            except grpc.aio.AioRpcError as error:
                _judge(error)
            else:
                if answer != encoded(Status.SERVING):
                    raise Unhealthy("it says that it is not serving")
            finally:
                await channel.close()
                await settled()

        return await attempt(ask, timeout=timeout)

    def _channel(self, target: Target) -> grpc.aio.Channel:
        scheme = "ipv6" if ":" in target.address else "ipv4"
        place = f"{scheme}:{addresses.join(target.address, target.port)}"
        options = [*_OPTIONS, ("grpc.default_authority", target.authority)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(place, options)
        options.append(("grpc.ssl_target_name_override", target.host.removesuffix(".")))
        return grpc.aio.secure_channel(place, self._credentials, options)


def credentials(ca: str = "") -> grpc.ChannelCredentials:
    """With the authorities of a file or of the system, where gRPC would take those it brings."""
    file = ca or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)


def _judge(error: grpc.aio.AioRpcError) -> None:
    """Raise what an answer other than OK means; its details are a remote's words, and stay here."""
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError
        case grpc.StatusCode.UNAVAILABLE:
            raise Unhealthy("it cannot be reached by gRPC") from None
        case code:
            raise Unhealthy(f"it answered {code.name}") from None
