"""The registry: which instances offer a service, their addresses and their state.

`contract.py` defines the interface; `kv/` implements it on a store and `redis/` on Redis."""
