"""Test support: real servers on free ports, and a proxy that breaks connections.

`etcd` and `redis` start servers and clusters, `proxy` forwards connections to them and injects
faults, and `fixtures` contains pytest fixtures.
"""
