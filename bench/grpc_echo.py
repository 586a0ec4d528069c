"""A gRPC server on several ports, whose methods return their request.

python -m bench.grpc_echo PORTS

It has the health service. Prints its ports.
"""

from __future__ import annotations

import sys

import grpc
import grpc.aio
import uvloop

from bench.processes import emit
from mooring.grpc import SERVER_OPTIONS, Health

ECHO = "/bench.Echo/Echo"


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(_echo) if details.method == ECHO else None


async def _echo(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return request


async def main(ports: int) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((_Echo(),))
    Health().serve(server)
    listening = [server.add_insecure_port("127.0.0.1:0") for _ in range(ports)]
    await server.start()
    emit(listening)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
