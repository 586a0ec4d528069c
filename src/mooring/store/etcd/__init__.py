"""etcd: our own thin client on `grpc.aio`, and the store on it.

`proto` is the wire format, `connection` the cluster, `watches` and `keepalive` the two streams,
`errors` the translation, `store` the contract, `diagnosis` what is wrong with an endpoint.
"""
