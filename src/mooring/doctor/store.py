"""What is well and what is wrong with a store."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator

from mooring.doctor.findings import SLOW, Finding, attempt, judge_clock, numbers, timed
from mooring.durations import show
from mooring.errors import StoreError
from mooring.store import Delete, Member, Put, Status, Store, key


async def examine(store: Store) -> AsyncIterator[Finding]:
    """Look at a store from all sides. It writes and removes one key below `/mooring/doctor/`."""
    status = await store.status()
    for member in status.members:
        yield judge_member(member)
        if (clock := judge_clock(member)) is not None:
            yield clock
    for finding in judge_status(status):
        yield finding
    if not any(member.latency is not None for member in status.members):
        yield Finding("error", "reachability", "no server answers: nothing more can be looked at")
        return
    async for finding in try_out(store):
        yield finding


def judge_member(member: Member) -> Finding:
    if member.latency is None:
        return Finding("error", member.address, member.problem)
    if not member.version:
        return Finding("ok", member.address, "holds the store itself")
    leader = ", leader" if member.leader else ""
    text = f"answers in {show(member.latency)}, version {member.version}{leader}"
    if member.latency > SLOW:
        return Finding("warning", member.address, f"{text}: that is slow")
    if (version := numbers(member.version)) and version < (3, 4):
        return Finding("warning", member.address, f"{text}: older than 3.4 is not supported")
    if version and (3, 5, 0) <= version <= (3, 5, 2):
        return Finding(
            "warning",
            member.address,
            f"{text}: 3.5.0 to 3.5.2 can lose consistency when killed; upgrade to 3.5.3 or later",
        )
    return Finding("ok", member.address, text)


def judge_status(status: Status) -> Iterator[Finding]:
    answering = [member for member in status.members if member.latency is not None]
    if answering and not any(member.leader for member in answering):
        yield Finding("warning", "leader", "none of the servers named in the URL is the leader")
    if len({member.version for member in answering}) > 1:
        versions = ", ".join(sorted({member.version for member in answering}))
        yield Finding("warning", "versions", f"the members differ: {versions}")
    for alarm in status.alarms:
        yield Finding("error", "alarm", alarm)
    if answering and not status.alarms:
        yield Finding("ok", "alarms", "none")


async def try_out(store: Store) -> AsyncIterator[Finding]:
    """What this user may do, by doing it, and how long it takes."""
    scratch = f"/mooring/doctor/{uuid.uuid4().hex}".encode()
    yield await attempt("read", timed(lambda: store.read(key(scratch))))
    writing = await attempt("write", timed(lambda: store.commit(Put(scratch, b"")), 3))
    yield writing
    yield await attempt("watch", _watch(store, scratch))
    yield await attempt("lease", _lease(store))
    if writing.level != "ok":
        return
    try:
        await store.commit(Delete(key(scratch)))
    except StoreError as error:
        yield Finding("error", "write", f"the scratch key {scratch.decode()} stays: {error}")


async def _watch(store: Store, name: bytes) -> str:
    async with store.watch(key(name)) as watch:
        started = time.monotonic()
        await store.commit(Put(name, b"watched"))
        await anext(watch)
    return f"allowed, a change arrives after {show(time.monotonic() - started)}"


async def _lease(store: Store) -> str:
    lease = await store.grant(5)
    await store.renew(lease.id)
    await store.revoke(lease.id)
    return f"granted for {show(lease.ttl)}, renewed, revoked"
