"""etcd: our own thin client on `grpc.aio`, and the store on it.

`proto` is the wire format, `connection` the cluster, `watches` and `keepalive` the two streams,
`errors` the translation, `store` the contract, `diagnosis` what is wrong with an endpoint.
"""

import os

# Its fork handlers cannot work while `grpc.aio` runs: they skip the parent's part and start threads
# in the child, which then crashes one time in five. Read when gRPC is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
