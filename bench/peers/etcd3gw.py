"""etcd3gw: blocking calls to etcd's HTTP gateway, from one thread for each call in flight."""

from __future__ import annotations

from collections.abc import Callable

import etcd3gw  # type: ignore[import-not-found]

from bench.load import KEYS, VALUE, Order, answer, in_threads, order


def run(order: Order) -> None:
    def connect() -> Callable[[int], object]:
        # One client per thread: a shared client has only ten connections.
        client = etcd3gw.client(order.host, order.port, timeout=5)
        if order.operation == "put":
            return lambda n: client.put(KEYS[n % len(KEYS)], VALUE)
        return lambda n: client.get(KEYS[n % len(KEYS)])

    answer(in_threads(connect, order.in_flight, order.seconds))


if __name__ == "__main__":
    run(order())
