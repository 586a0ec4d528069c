"""A gRPC server that returns an empty response to every put: the cost of Python's gRPC alone.

python -m bench.noop_server PORT
"""

from __future__ import annotations

import sys

import grpc
import grpc.aio
import uvloop

from mooring.store.etcd import proto


async def main(port: int) -> None:
    path, read, write = proto.serving("put")
    answer = proto.PutResponse()

    async def put(_: object, __: grpc.aio.ServicerContext) -> object:
        return answer

    _, service, method = path.split("/")
    handler = grpc.unary_unary_rpc_method_handler(put, read, write)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
