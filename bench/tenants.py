"""The cost of tenants: a lookup, a change, startup, and a request with a tenant."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import NamedTuple, cast

from bench.bare_etcd import fresh_etcd
from bench.generated_tenants import KEYS, SERVICES, entries, parts, populate
from bench.measure import (
    Line,
    Plan,
    Section,
    Target,
    in_rounds,
    interleaved,
    microseconds,
    milliseconds,
    ratio,
)
from bench.processes import script
from mooring.asgi import ASGIMessage, Receive, Scope, Send, TenantMiddleware
from mooring.backends import open_store
from mooring.store import Entry
from mooring.tenants.model import encode
from mooring.tenants.read.parser import SnapshotParser
from mooring.tenants.read.snapshot import TenantSnapshot
from mooring.tenants.read.tenants import Tenants
from mooring.tenants.secrets import Keyring

FEW, MANY, COLD = "10 tenants", "100 k tenants", "100 k tenants, cold"
LOOKUPS = {FEW: (10, 10), MANY: (100_000, 1_000), COLD: (100_000, 100_000)}
"""The number of tenants, and how many of them the lookups cycle through. With all of them, every
object comes from main memory instead of the CPU caches."""
CHANGES = {"1 k tenants": 1_000, "100 k tenants": 100_000}
LOADED = 10_000
MOST = 1.0
"""The limit for a lookup, in microseconds."""

_STRETCH = 1000
_WITHIN = 300.0
_READING = SnapshotParser(KEYS, Keyring())

Rates = Mapping[str, list[float]]
Side = Callable[[], Awaitable[float]]


async def run(plan: Plan) -> list[Section]:
    fine = plan.finer(4)
    started = await _started(plan)
    snapshots = {count: _snapshot(count) for count in sorted({10, *CHANGES.values()})}
    return [
        await _lookups(fine, snapshots),
        await _changes(fine, snapshots),
        started,
        await _requests(fine, snapshots[100_000]),
    ]


def _snapshot(count: int) -> TenantSnapshot:
    known = entries(range(1, count + 1))
    return _READING.apply(TenantSnapshot(), ((entry.key, entry) for entry in known)).snapshot


async def _lookups(plan: Plan, snapshots: Mapping[int, TenantSnapshot]) -> Section:
    kinds: Mapping[str, Callable[[Tenants, int], tuple[Callable[..., object], tuple[object, ...]]]]
    kinds = {
        "database(id, service)": lambda known, n: (known.database, (n, SERVICES[n % 4])),
        "meta(id)": lambda known, n: (known.meta, (n,)),
        "storage(id)": lambda known, n: (known.storage, (n,)),
        "domain(id)": lambda known, n: (known.domain, (n,)),
        "active_ftp(id)": lambda known, n: (known.active_ftp, (n,)),
        "by_host(host)": lambda known, n: (known.by_host, (f"www.t{n}.example.com",)),
        "by_code(code)": lambda known, n: (known.by_code, (f"tenant_{n}",)),
        "by_name(name)": lambda known, n: (known.by_name, (f"租户 {n}",)),
        "ftp_user(name)": lambda known, n: (known.ftp_user, (f"ftp_{n}",)),
    }
    lines: list[Line] = []
    for what, question in kinds.items():
        sides: dict[str, Side] = {}
        for name, (count, asked_for) in LOOKUPS.items():
            known = Tenants(snapshots[count])
            asked = [question(known, 1 + n * 7919 % count) for n in range(asked_for)]
            sides[name] = partial(
                _asking, asked[0][0], [arguments for _, arguments in asked], plan.seconds
            )
        rates = await interleaved(plan, f"lookup {what}", sides, _time_per_call)
        lines += [_lookup(f"{what}, {name}", rates[name]) for name in LOOKUPS]
    plain = _plain(snapshots[100_000])
    all_tenants = [(1 + n * 7919 % 100_000, SERVICES[n % 4]) for n in range(100_000)]
    side = partial(_asking, plain, all_tenants, plan.seconds)
    rates = await interleaved(plan, "lookup in plain dicts", {"": side}, _time_per_call)
    lines.append(Line(f"plain nested dicts, {COLD}", _time_per_call(median(rates[""]))))
    text = (
        "One lookup in a loaded `Tenants` with ten keys per tenant, cycling through a thousand "
        'tenants. "Cold" cycles through all tenants, so that each lookup misses the CPU '
        "caches. The time includes the loop. The last row is the time of plain Python "
        "dictionaries for `database`."
    )
    return Section("Tenants, lookups", text, lines)


def _lookup(what: str, rates: list[float]) -> Line:
    target, value = Target("≤", MOST, microseconds), 1e6 / median(rates)
    return Line(what, microseconds(value), target=target, value=value)


def _plain(snapshot: TenantSnapshot) -> Callable[[int, str], object]:
    known = {id: dict(tenant.databases) for id, tenant in snapshot.tenants.items()}

    def database(tenant: int, service: str) -> object:
        databases = known.get(tenant)
        return None if databases is None else databases.get(service)

    return database


async def _asking(
    ask: Callable[..., object], arguments: Sequence[tuple[object, ...]], seconds: float
) -> float:
    clock, done, turns = time.perf_counter, 0, cycle(arguments)
    start = clock()
    while (elapsed := clock() - start) < seconds:
        for values in islice(turns, _STRETCH):
            ask(*values)
        done += _STRETCH
    return done / elapsed


async def _changes(plan: Plan, snapshots: Mapping[int, TenantSnapshot]) -> Section:
    kinds = {
        "one database": "database/evidence-query",
        "the meta, with code and name": "meta",
        "the aliases": "domain/aliases",
    }
    lines: list[Line] = []
    few, many = CHANGES
    for what, path in kinds.items():
        sides: dict[str, Side] = {
            name: partial(_applying, snapshots[count], count, path, plan.seconds)
            for name, count in CHANGES.items()
        }
        rates = await interleaved(plan, f"change of {what}", sides, _time_per_call)
        lines.append(Line(f"{what}, {few}", _time_per_call(median(rates[few]))))
        lines.append(
            Line(
                f"{what}, {many}",
                _time_per_call(median(rates[many])),
                f"{few} {_time_per_call(median(rates[few]))}",
                ratio(rates[few], rates[many]),
                Target("≤", 1.5),
            )
        )
    text = (
        "One key of one tenant changes: from the key and its value, as delivered by the "
        "mirror, to the snapshot that readers see, for a different tenant each time. Ratios "
        "compare times."
    )
    return Section("Tenants, changes", text, lines)


async def _applying(snapshot: TenantSnapshot, count: int, path: str, seconds: float) -> float:
    """Changes per second, excluding the time to build the events."""
    known, clock, done, elapsed = Tenants(snapshot), time.perf_counter, 0, 0.0
    while elapsed < seconds:
        events = [_event(1 + n * 7919 % count, path, f"{n}") for n in range(done, done + 100)]
        start = clock()
        for entry in events:
            outcome = _READING.apply(known.snapshot, ((entry.key, entry),))
            known.show(outcome.snapshot, outcome.changes)
            assert outcome.changes
        elapsed += clock() - start
        done += 100
    return done / elapsed


def _event(tenant: int, path: str, stamp: str) -> Entry:
    value = parts(tenant)[path]
    if isinstance(value, dict):
        names = ("code", "name") if path == "meta" else ("database",)
        value |= {name: f"{value[name]}_{stamp}" for name in names}
    else:
        value = [f"x{stamp}.t{tenant}.example.com"]
    return Entry(KEYS.part(tenant, path), encode(path, value), 2, 3, 2)


class Start(NamedTuple):
    bare: float
    loaded: float
    held_up: float
    memory: float


async def _started(plan: Plan) -> Section:
    with fresh_etcd() as server:
        async with open_store(server.url) as store:
            plan.say(f"tenants: writing {LOADED:,} of them")
            await populate(store, range(1, LOADED + 1))

        async def measure() -> dict[str, Start]:
            arguments = (server.url, str(LOADED))
            async with script("bench.roles.tenant_reader", *arguments) as reader:
                return {"": Start(*cast("list[float]", await reader.receive(within=_WITHIN)))}

        taken = (await in_rounds(plan, "tenants: a start", measure, str))[""]
    typical = Start(*map(median, zip(*taken, strict=True)))
    bare, loaded = [start.bare for start in taken], [start.loaded for start in taken]
    lines = [
        Line(
            "time to load",
            milliseconds(typical.loaded * 1000),
            f"a bare read of their keys {milliseconds(typical.bare * 1000)}",
            ratio(loaded, bare),
        ),
        Line("longest event loop stall", milliseconds(typical.held_up * 1000)),
        Line("memory per tenant", f"{typical.memory / 1024:.1f} KiB"),
    ]
    text = (
        f"A process opens {LOADED:,} tenants with ten keys each on etcd. A stall is the time "
        "during which nothing else in the process could run. Memory is the growth of the "
        "process, including the entries kept for comparison with the store."
    )
    return Section("Tenants, startup", text, lines)


async def _requests(plan: Plan, snapshot: TenantSnapshot) -> Section:
    sides: dict[str, Side] = {"none": partial(_serving, _application, plan.seconds)}
    for kind in ("header", "host"):
        entry = Entry(b"jxt/common/resolver", b'{"httpType":"%s"}' % kind.encode(), 2, 2, 1)
        changed = _READING.apply(snapshot, ((entry.key, entry),)).snapshot
        app = TenantMiddleware(_application, Tenants(changed))
        sides[kind] = partial(_serving, app, plan.seconds)
    rates = await interleaved(plan, "a request", sides, _time_per_call)
    lines = [Line("without a tenant", _time_per_call(median(rates["none"])))]
    for kind in ("header", "host"):
        more = [
            1e6 / mine - 1e6 / bare for mine, bare in zip(rates[kind], rates["none"], strict=True)
        ]
        lines.append(
            Line(
                f"with a tenant, by {kind}",
                _time_per_call(median(rates[kind])),
                remark=f"{microseconds(median(more))} more than without",
            )
        )
    text = (
        "A request to an ASGI application that does nothing, among 100 k tenants, from the "
        "server's call to the end. The request has twelve headers, one of which names the "
        "tenant."
    )
    return Section("Tenants, request overhead", text, lines)


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _serving(app: Callable[[Scope, Receive, Send], Awaitable[None]], seconds: float) -> float:
    async def receive() -> ASGIMessage:
        return {"type": "http.request", "body": b""}

    async def send(message: ASGIMessage) -> None:
        pass

    others = [(b"x-other-%d" % n, b"something") for n in range(10)]
    clock, done = time.perf_counter, 0
    start = clock()
    while (elapsed := clock() - start) < seconds:
        for number in range(1, 101):
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/orders",
                "query_string": b"",
                "headers": [
                    (b"host", b"www.t%d.example.com" % number),
                    *others,
                    (b"x-tenant-id", b"%d" % number),
                ],
            }
            await app(scope, receive, send)
        done += 100
    return done / elapsed


def _time_per_call(rate: float) -> str:
    return microseconds(1e6 / rate)
