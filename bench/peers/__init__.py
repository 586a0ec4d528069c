"""One script for each client, run by an interpreter that has that client (see `bench.etcd_peers`).

Each takes ADDRESS OPERATION IN_FLIGHT SECONDS and prints one line of JSON.
"""
