"""What tests need: real servers on free ports, and a proxy that breaks connections.

`etcd` starts single servers and clusters, `proxy` stands between them and a client, `fixtures`
brings both to pytest.
"""
