"""redis-py's `Lock` with its default settings."""

from __future__ import annotations

from redis import Redis

from bench.load import Order, answer, order
from bench.peers.blocking_locks import hand_over, uncontended

_NAME = "bench-lock"


def run(order: Order) -> None:
    what, _, count = order.operation.partition(" of ")
    clients = [Redis(order.host, order.port) for _ in range(2)]
    if what == "uncontended":
        answer(uncontended(clients[0].lock(_NAME), order.seconds))
    else:
        answer(hand_over(lambda n: clients[n % 2].lock(_NAME), int(count), order.seconds))


if __name__ == "__main__":
    run(order())
