"""The etcd store: a thin client of our own on `grpc.aio`, and the store contract on it.

`proto` is the wire format, `connection` the cluster, `watches` and `keepalive` the two streams,
`errors` the translation of errors, `store` the contract, `diagnosis` explains failed connections.
"""
