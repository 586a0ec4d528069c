"""The admin API of `mooring serve`: lists under load, and a stream with many clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple, cast

import httpx
import psutil

from bench import wrk
from bench.durable_store import scratch_folder
from bench.measure import (
    Line,
    Plan,
    Section,
    Target,
    interleaved,
    milliseconds,
    per_second,
    ratio,
)
from bench.population import SERVICE, instance, populate, puts
from bench.processes import ProcessFailed, script
from bench.wrk import Loaded
from mooring.backends import open_store
from mooring.store import Store
from mooring.testing.servers import free_port

INSTANCES = 100
MANY = 10_000
PAGE = 100
CONNECTIONS = 16
RATE = 2_000.0
"""The target: lists of a hundred instances per second on one core."""
CLIENTS = 500
CHANGES = 100
"""Per second."""
LAG = 1000.0
"""Milliseconds."""

_PATH = f"/admin/registry/services/{urllib.parse.quote(SERVICE, safe='')}/instances"
_WITHIN = 120.0


async def run(plan: Plan) -> list[Section]:
    return [await _lists(plan), await _stream(plan)]


class Serving(NamedTuple):
    http: str
    token: str
    store: Store
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.http}"


@contextmanager
def process() -> Iterator[tuple[str, str, str, int]]:
    """A `mooring serve` with an in-memory store: its HTTP and etcd addresses, token and pid."""
    http, etcd = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with scratch_folder() as folder:
        settings = folder / "serve.yaml"
        settings.write_text("rates: {reads: 0}\n")
        flags = ["--store=memory://", f"--http={http}", f"--etcd={etcd}", f"--data={folder}"]
        command = [sys.executable, "-m", "mooring.cli", "serve", *flags, f"--config={settings}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                while not process.stdout.readline().startswith("ready"):
                    if process.poll() is not None:
                        raise RuntimeError(f"{command} did not start")
                token = (folder / "admin-token").read_text().strip()
                yield http, f"etcd://{etcd}", token, process.pid
            finally:
                process.kill()


@asynccontextmanager
async def _serving(instances: int) -> AsyncIterator[Serving]:
    """A server with the given number of instances of one service, all visible."""
    with process() as (http, etcd, token, pid):
        async with open_store(etcd) as store:
            await populate(store, range(instances))
            serving = Serving(http, token, store, pid)
            await _shown(serving, instances)
            yield serving


async def _shown(serving: Serving, instances: int) -> None:
    async with _client(serving) as client, asyncio.timeout(_WITHIN):
        while True:
            answer = await client.get(_PATH, params={"limit": "1"})
            if answer.headers.get("X-Total-Count") == str(instances):
                return
            await asyncio.sleep(0.05)


def _client(serving: Serving) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {serving.token}"}
    return httpx.AsyncClient(base_url=serving.url, headers=headers, timeout=60, trust_env=False)


async def _lists(plan: Plan) -> Section:
    hundred = f"list of {INSTANCES} instances"
    page = f"page of {PAGE} in {MANY:,} instances"
    try:
        wrk.find()
        lines = [*await _list(plan, hundred, INSTANCES, ""), *await _list(plan, page, MANY, "500")]
    except ProcessFailed as failed:
        lines = [Line(what, "", remark=str(failed)) for what in (hundred, page)]
    lines.append(await _listed(plan))
    text = (
        f"GET requests for the instances of a service from wrk over {CONNECTIONS} connections. "
        "The server is pinned to one core; wrk uses the others. Bare is uvicorn on the same "
        "core, running an application that returns the same bytes. The last row is one client "
        f"that reads all {MANY:,} instances page by page."
    )
    return Section("Admin API: lists", text, lines)


async def _list(plan: Plan, what: str, instances: int, after: str) -> list[Line]:
    query = f"?limit={PAGE}" + (f"&after={instance(int(after)).id}" if after else "")
    async with _serving(instances) as serving:
        async with _client(serving) as client:
            answer = await client.get(_PATH + query)
            assert len(answer.json()) == PAGE, answer.text
        with scratch_folder() as folder:
            body = folder / "body"
            body.write_bytes(answer.content)
            async with script("bench.roles.http_server", str(body)) as bare:
                port = await bare.receive(within=_WITHIN)
                _pin(serving.pid, bare.pid)
                sides = {
                    name: partial(
                        wrk.load,
                        f"{url}{_PATH}{query}",
                        serving.token,
                        connections=CONNECTIONS,
                        seconds=plan.seconds,
                    )
                    for name, url in (("ours", serving.url), ("bare", f"http://127.0.0.1:{port}"))
                }
                taken = await interleaved(plan, what, sides, _show)
    rates = {name: [result.per_second for result in loads] for name, loads in taken.items()}
    worst = {name: median(result.p99 for result in loads) for name, loads in taken.items()}
    value = median(rates["ours"])
    return [
        Line(
            what,
            per_second(value),
            f"bare uvicorn {per_second(median(rates['bare']))}",
            target=Target("≥", RATE, per_second) if instances == INSTANCES else None,
            value=value,
            ratio=None if instances == INSTANCES else ratio(rates["ours"], rates["bare"]),
        ),
        Line(
            f"{what}, p99",
            milliseconds(worst["ours"]),
            f"bare uvicorn {milliseconds(worst['bare'])}",
        ),
    ]


def _pin(*pids: int) -> None:
    """All to the last core; what loads them may run on any other."""
    last = max(os.sched_getaffinity(0))
    for pid in pids:
        psutil.Process(pid).cpu_affinity([last])


def _show(load: Loaded) -> str:
    return f"{per_second(load.per_second)} (p99 {milliseconds(load.p99)})"


async def _listed(plan: Plan) -> Line:
    """One client reads all instances by following the page links."""
    async with _serving(MANY) as serving, _client(serving) as client:

        async def read() -> float:
            started, count, next_page = time.perf_counter(), 0, f"{_PATH}?limit=1000"
            while next_page:
                answer = await client.get(next_page)
                count += len(answer.json())
                next_page = answer.links.get("next", {}).get("url", "")
            assert count == MANY, count
            return (time.perf_counter() - started) * 1000

        await read()
        taken = await interleaved(plan, f"{MANY:,} instances", {"ours": read}, milliseconds)
    return Line(f"all {MANY:,} instances, 1,000 per page", milliseconds(median(taken["ours"])))


class Lag(NamedTuple):
    """In milliseconds."""

    median: float
    p99: float
    frames: float
    """Per client and second."""


async def _stream(plan: Plan) -> Section:
    async with _serving(INSTANCES) as serving:
        sides = {"ours": partial(_follow, serving, max(plan.seconds, 2.0))}
        taken = (await interleaved(plan, f"stream to {CLIENTS}", sides, _show_lag))["ours"]
    worst = median(sample.p99 for sample in taken)
    lines = [
        Line("lag, median", milliseconds(median(sample.median for sample in taken))),
        Line(
            "lag, p99",
            milliseconds(worst),
            target=Target("≤", LAG, milliseconds),
            value=worst,
        ),
        Line("frames per client", f"{median(sample.frames for sample in taken):.1f}/s"),
    ]
    text = (
        f"{CLIENTS} clients of `/admin/events`, all in one other process, follow a service of "
        f"{INSTANCES} instances with {CHANGES} changes per second. Lag is measured for each "
        "change and each client, from just before the change is written to the store until the "
        "client has read it. The server batches changes into one frame every quarter of a "
        "second. Rounds last at least 2 s."
    )
    return Section(f"Admin API: {CLIENTS} stream clients", text, lines)


def _show_lag(lag: Lag) -> str:
    return f"{milliseconds(lag.median)} (p99 {milliseconds(lag.p99)})"


async def _follow(serving: Serving, seconds: float) -> Lag:
    arguments = (serving.http, serving.token, SERVICE, str(CLIENTS), str(seconds))
    async with script("bench.roles.stream_clients", *arguments) as listeners:
        assert await listeners.receive(within=_WITHIN) == "ready"
        report = asyncio.ensure_future(listeners.receive(within=seconds + _WITHIN))
        started, number = time.perf_counter(), 0
        while not report.done():
            late = time.perf_counter() - started - number / CHANGES
            await asyncio.sleep(max(-late, 0))
            changed = instance(number % INSTANCES, load=time.monotonic())
            await serving.store.commit(*puts(changed))
            number += 1
    middle, worst, _, frames = cast("list[float]", await report)
    return Lag(middle * 1000, worst * 1000, frames / CLIENTS / seconds)
