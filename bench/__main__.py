"""Run the benchmarks and print the results."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import uvloop
from rich.console import Console

from bench import (
    admin,
    consistent_hashing,
    discovery_latency,
    durable_store,
    etcd_client,
    etcd_peers,
    etcd_reads,
    first_paint,
    grpc_calls,
    idle_registrations,
    large_views,
    locks,
    machine,
    memory_store,
    modes,
    picking,
    redis_cleanup,
    redis_heartbeats,
    redis_listing,
    redis_scaling,
    registration_rate,
    report,
    serve,
    tenants,
    watch_delivery,
    xds_push,
)
from bench.measure import Plan, Section

_MEASUREMENTS: Mapping[str, Callable[[Plan], Awaitable[list[Section]]]] = {
    "etcd-client": etcd_client.run,
    "etcd-peers": etcd_peers.run,
    "watch-delivery": watch_delivery.run,
    "etcd-reads": etcd_reads.run,
    "serve": serve.run,
    "durable-store": durable_store.run,
    "memory-store": memory_store.run,
    "picking": picking.run,
    "consistent-hashing": consistent_hashing.run,
    "discovery-latency": discovery_latency.run,
    "registration-rate": registration_rate.run,
    "large-views": large_views.run,
    "idle-registrations": idle_registrations.run,
    "redis-heartbeats": redis_heartbeats.run,
    "redis-listing": redis_listing.run,
    "redis-cleanup": redis_cleanup.run,
    "redis-scaling": redis_scaling.run,
    "locks": locks.run,
    "grpc-calls": grpc_calls.run,
    "xds-push": xds_push.run,
    "modes": modes.run,
    "tenants": tenants.run,
    "admin": admin.run,
    "first-paint": first_paint.run,
}
_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "benchmarks.md"


def main() -> int:
    options = _options()
    console = Console()
    plan = Plan(
        options.rounds,
        options.seconds,
        lambda text: console.print(text, highlight=False, soft_wrap=True),
    )
    try:
        sections = uvloop.run(_measure(plan, options.only or list(_MEASUREMENTS)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; nothing written")
        return 1
    report.show(console, machine.description(), sections)
    if options.write:
        page = report.page(machine.description(), sections, plan.rounds, plan.seconds)
        if options.only:
            page = report.merged(_PAGE.read_text(encoding="utf-8"), page)
        _PAGE.write_text(page, encoding="utf-8")
        console.print(f"written to {_PAGE.relative_to(_ROOT)}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=list(_MEASUREMENTS),
        help=f"run only these: {', '.join(_MEASUREMENTS)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per comparison (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of each measurement (default: 1)"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="update docs/benchmarks.md, or only its sections that were run",
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds must be at least 1 and --seconds greater than 0")
    return options


async def _measure(plan: Plan, names: list[str]) -> list[Section]:
    task = asyncio.current_task()
    assert task is not None
    # Stops the servers too when this process receives a signal.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    sections: list[Section] = []
    for name in names:
        sections += await _MEASUREMENTS[name](plan)
    return sections


if __name__ == "__main__":
    sys.exit(main())
