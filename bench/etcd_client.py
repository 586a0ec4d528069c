"""Our etcd client against the bare driver: the same messages, deadlines and metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import median

from bench.bare_etcd import METADATA, TIMEOUT, bare, fresh_etcd
from bench.load import KEYS, VALUE, Load, in_flight
from bench.measure import Line, Plan, Section, Target, interleaved, milliseconds, per_second, ratio
from mooring.backends import open_store
from mooring.store import Put, Store, key
from mooring.store.etcd.proto import Methods, PutRequest, RangeRequest

IN_FLIGHT = 64

_NAMES = [name.encode() for name in KEYS]
_VALUE = VALUE.encode()

_REASON = (
    "With gRPC stubbed out, our client spends 6.6 µs per call and the bare loop 1.3 µs: "
    "validating the request, building the message, choosing the endpoint and decoding the "
    "response."
)

Call = Callable[[int], Awaitable[object]]


async def run(plan: Plan) -> list[Section]:
    plan = plan.finer(10)
    with fresh_etcd() as server:
        async with bare(server) as methods, open_store(server.url) as store:
            await fill(methods)
            lines: list[Line] = []
            for operation in ("put", "get"):
                sides = {
                    "ours": _ours(store)[operation],
                    "ours again": _ours(store)[operation],
                    "bare": _bare(methods)[operation],
                    "barest": _barest(methods)[operation],
                }
                lines += await _compare(plan, operation, sides)
    text = (
        f"{IN_FLIGHT} calls in flight on one uvloop. The bare driver calls gRPC's stub in a "
        "loop, with the same messages, channel options, deadline and metadata (`hasleader`, "
        "which makes a member that has lost its leader fail at once). The barest driver sends "
        'neither deadline nor metadata. The ratio is ours to the driver\'s. "Ours again" runs '
        "the same code twice: its distance from 1 is noise."
    )
    return [Section("etcd client against the bare driver", text, lines)]


async def fill(methods: Methods) -> None:
    """Writes the keys that the benchmark reads."""
    put = _barest(methods)["put"]
    for number in range(len(_NAMES)):
        await put(number)


async def _compare(plan: Plan, operation: str, calls: Mapping[str, Call]) -> list[Line]:
    for call in calls.values():
        await in_flight(call, IN_FLIGHT, 0.2)
    sides = {
        name: partial(in_flight, call, IN_FLIGHT, plan.seconds) for name, call in calls.items()
    }
    taken = await interleaved(plan, f"etcd {operation}", sides, show)
    ours, target = taken["ours"], Target("≥", 0.9)
    return [
        compared(f"{operation}, bare driver", ours, taken["bare"], target, _REASON),
        compared(f"{operation}, barest driver", ours, taken["barest"]),
        compared(f"{operation}, ours again", ours, taken["ours again"]),
    ]


def compared(
    what: str,
    ours: Sequence[Load],
    theirs: Sequence[Load],
    target: Target | None = None,
    remark: str = "",
) -> Line:
    """A row that compares two throughputs."""
    return Line(
        what,
        show(_median(ours)),
        show(_median(theirs)),
        ratio([load.ops_per_s for load in ours], [load.ops_per_s for load in theirs]),
        target,
        remark=remark,
    )


def show(load: Load) -> str:
    return f"{per_second(load.ops_per_s)}, p50 {milliseconds(load.p50_ms)}"


def _median(loads: Sequence[Load]) -> Load:
    return Load(*map(median, zip(*loads, strict=True)))


def _ours(store: Store) -> dict[str, Call]:
    return {
        "put": lambda n: store.commit(Put(_NAMES[n % len(_NAMES)], _VALUE)),
        "get": lambda n: store.read(key(_NAMES[n % len(_NAMES)])),
    }


def _bare(methods: Methods) -> dict[str, Call]:
    return _barest(methods, timeout=TIMEOUT, metadata=METADATA)


def _barest(methods: Methods, **options: object) -> dict[str, Call]:
    def put(number: int) -> Awaitable[object]:
        request = PutRequest(key=_NAMES[number % len(_NAMES)], value=_VALUE)
        call: Awaitable[object] = methods.put(request, **options)
        return call

    def get(number: int) -> Awaitable[object]:
        request = RangeRequest(key=_NAMES[number % len(_NAMES)])
        call: Awaitable[object] = methods.range(request, **options)
        return call

    return {"put": put, "get": get}
