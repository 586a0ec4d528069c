"""Other etcd clients on PyPI, each in its own virtual environment, under the same load."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.bare_etcd import bare, fresh_etcd
from bench.etcd_client import IN_FLIGHT, compared, fill, show
from bench.load import Load
from bench.measure import Line, Plan, Section, Target, interleaved
from bench.processes import ROOT, ProcessFailed, output

_VENVS = Path(".bench", "venvs")
_INSTALL_WITHIN = 300.0
_START_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A client on PyPI. Its script is `bench/peers/NAME.py`, with `_` for `-`."""

    name: str
    requirements: tuple[str, ...]
    """What pip installs, the client first: versions known to work together."""
    differs: str = ""
    """What it omits in a call, compared with ours."""

    @property
    def title(self) -> str:
        return self.requirements[0].replace("==", " ")


PEERS = (
    Peer(
        "etcetra",
        ("etcetra==0.1.19", "grpcio==1.62.2", "protobuf==4.25.9", "uvloop==0.23.0"),
        "It sends neither a deadline nor `hasleader` (nor does the barest driver).",
    ),
    Peer(
        "aetcd",
        ("aetcd==1.0.0", "grpcio==1.85.1", "protobuf==7.36.2", "uvloop==0.23.0"),
        "It does not send `hasleader`.",
    ),
    Peer("etcd3gw", ("etcd3gw==2.7.0", "requests==2.34.2", "urllib3==2.8.0")),
    Peer("etcd-client-py", ("etcd-client-py==0.5.1", "uvloop==0.23.0")),
)

# Two equal clients differ by a few percent from run to run.
_TARGET = Target("≥", 0.95)


_OURS = "mooring"
_AGAIN = "mooring again"


async def run(plan: Plan) -> list[Section]:
    plan = plan.finer(2)
    failed: dict[str, str] = {}
    pythons = {_OURS: Path(sys.executable)}
    for peer in PEERS:
        try:
            pythons[peer.name] = await installed(peer, plan)
        except ProcessFailed as problem:
            failed[peer.name] = str(problem)
    lines: list[Line] = []
    with fresh_etcd() as server:
        async with bare(server) as methods:
            await fill(methods)
        for operation in ("put", "get"):
            lines += await _compare(plan, operation, server.address, pythons, failed)
    text = (
        f"{IN_FLIGHT} calls in flight from one process per client, ours included: coroutines on "
        "uvloop, or threads for blocking clients. Each call has a deadline of 5 s, as in our "
        "client, if the client supports one (etcetra does not). Reads are linearizable, except "
        "etcetra's, which supports only serializable reads. The ratio is ours to theirs; 0.95 "
        'and above counts as equal. "Ours again" runs the same code twice: its distance from 1 '
        "is noise."
    )
    return [Section("etcd client against its peers", text, lines)]


async def _compare(
    plan: Plan,
    operation: str,
    address: str,
    pythons: dict[str, Path],
    failed: dict[str, str],
) -> list[Line]:
    async def measured(name: str) -> Load | None:
        if name in failed:
            return None
        try:
            return await run_peer(name, pythons[name], address, operation, plan.seconds)
        except ProcessFailed as problem:
            failed[name] = str(problem)
            return None

    order = [name for name in pythons if name != _OURS]
    # Ours runs next to the two most similar clients: noise grows with the distance in time.
    order.insert(1, _OURS)
    order.insert(3, _AGAIN)
    sides = {name: partial(measured, _OURS if name == _AGAIN else name) for name in order}
    taken = await interleaved(plan, f"peers {operation}", sides, _shown)
    ours = [load for load in taken[_OURS] if load is not None]
    again = [load for load in taken[_AGAIN] if load is not None]
    if _OURS in failed:
        raise ProcessFailed(f"ours, {operation}: {failed[_OURS]}")
    lines = [compared(f"{operation}, ours again", ours, again)]
    for peer in PEERS:
        theirs = [load for load in taken.get(peer.name, ()) if load is not None]
        what = f"{operation}, {peer.title}"
        if peer.name in failed:
            lines.append(Line(what, "", remark=f"not measured: {failed[peer.name]}"))
        else:
            lines.append(compared(what, ours, theirs, _TARGET, peer.differs))
    return lines


def _shown(load: Load | None) -> str:
    return "failed" if load is None else show(load)


async def installed(peer: Peer, plan: Plan) -> Path:
    """The interpreter of the peer's virtual environment, which is created if it is missing."""
    folder = ROOT / _VENVS / peer.name
    python = folder / "bin" / "python"
    done, wanted = folder / "installed", "\n".join(peer.requirements)
    if done.is_file() and done.read_text() == wanted:
        return python
    plan.say(f"peers: installing {peer.title}")
    await output(sys.executable, "-m", "venv", "--clear", str(folder), within=_INSTALL_WITHIN)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    await output(str(python), *pip, *peer.requirements, within=_INSTALL_WITHIN)
    done.write_text(wanted)
    return python


async def run_peer(name: str, python: Path, address: str, operation: str, seconds: float) -> Load:
    """The load of one client on one server, from a process of its own."""
    script = f"bench.peers.{name.replace('-', '_')}"
    arguments = (address, operation, str(IN_FLIGHT), str(seconds))
    command = (str(python), "-m", script, *arguments)
    return Load(**json.loads(await output(*command, within=seconds + _START_WITHIN)))
