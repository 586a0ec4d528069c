"""What tests need: real servers on free ports, and a proxy that breaks connections.

`etcd` and `redis` start single servers and clusters, `proxy` stands between them and a client,
`fixtures` brings them to pytest.
"""
