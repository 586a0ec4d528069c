"""The embedded store: an MVCC engine inside this process that behaves like etcd.

`engine` combines `keyspace`, `leases` and `watchers`, without I/O. A runner drives it: in memory
(`store`) or with a journal in SQLite (`durable`). `store` implements the contract on a runner.
"""
