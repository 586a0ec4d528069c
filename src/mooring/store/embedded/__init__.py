"""The embedded store: an MVCC engine that answers like etcd, inside this process.

`engine` puts `keyspace`, `leases` and `watchers` together, without I/O; `host` drives it in memory,
`durable` with a `journal` in SQLite; `store` is the contract on a host, `wire` etcd's own API.
"""
