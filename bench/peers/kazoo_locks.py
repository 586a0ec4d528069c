"""kazoo's `Lock` on ZooKeeper."""

from __future__ import annotations

from contextlib import ExitStack

from bench.load import Order, answer, order
from bench.peers.blocking_locks import hand_over, uncontended
from bench.zookeeper import client

_NAME = "/bench/lock"


def run(order: Order) -> None:
    what, _, count = order.operation.partition(" of ")
    with ExitStack() as stack:
        address = f"{order.host}:{order.port}"
        clients = [stack.enter_context(client(address)) for _ in range(2)]
        if what == "uncontended":
            answer(uncontended(clients[0].Lock(_NAME), order.seconds))
        else:
            answer(hand_over(lambda n: clients[n % 2].Lock(_NAME), int(count), order.seconds))


if __name__ == "__main__":
    run(order())
