"""tooz's lock on etcd, through its driver `etcd3+http`."""

from __future__ import annotations

from tooz import coordination  # type: ignore[import-not-found,unused-ignore]

from bench.load import Order, answer, order
from bench.peers.blocking_locks import uncontended


def run(order: Order) -> None:
    url = f"etcd3+http://{order.host}:{order.port}"
    coordinator = coordination.get_coordinator(url, b"bench")
    coordinator.start(start_heart=True)
    try:
        answer(uncontended(coordinator.get_lock(b"bench"), order.seconds))
    finally:
        coordinator.stop()


if __name__ == "__main__":
    run(order())
