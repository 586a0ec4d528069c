"""Version 1.0 as it lies in Redis: its keys, and what its records say. Pure.

    [{prefix}:]services:{svc}:{id}     Hash   host, port, healthy, timestamp, weight, metadata
    [{prefix}:]service_instances:{svc} Set    the ids that readers look at
    [{prefix}:]heartbeat:{svc}         ZSet   ids by their last heartbeat, on the clock of each
    [{prefix}:]service_change:{svc}    channel

Where it is silent, this is how it is understood:

- Who is in the set and has a hash is registered: readers go that way. Anything less is a remnant.
- Times are in ms, or in s where they would lie before 1973. Who has no heartbeat was last heard
  when it registered, as far as it says when.
- `metadata` is a JSON object, or `a=1,b=2`, or `{a=1, b=2}` as Java prints it; any other text is
  kept whole under the name `metadata`. Values that are no text keep their JSON, digit by digit.
- Without host or port there is nothing to call. What else is missing has its default; a wrong
  `healthy` is false, as readers have it, a wrong weight is 1.
- Fields that version 1.0 does not name are metadata, but for protocol, version and zone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.model import Instance, RecordedMetadata, Status
from mooring.registry import json_values as values
from mooring.registry.redis import layout as tiers
from mooring.registry.redis.layout import RedisKeys

INCARNATION = "v1"
"""Of what was copied: a process that speaks v2 has a unique one, and this one never."""

BRIDGED = "bridged"
"""The field of a v1 record that the bridge wrote: it holds the same as `timestamp`. Where a process
of v1 registers over it, the two differ, and the record is that process's."""

_NAMED = {"host", "port", "healthy", "timestamp", "weight", "metadata"}
_OURS = {"protocol", "version", "zone"}
_SECONDS, _NONSENSE = 1e11, 1e14
_TRUE, _FALSE = ("true", "1", "yes", "up"), ("false", "0", "no", "down")


class V1Keys:
    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        root = f"{prefix}:" if prefix else ""
        self.hashes = f"{root}services:"
        self.sets = f"{root}service_instances:"
        self.zsets = f"{root}heartbeat:"
        self.channels = f"{root}service_change:"
        escaped = re.sub(r"[\\*?\[\]^-]", r"\\\g<0>", root)
        self.pattern = f"{escaped}[sh]e[ra][vr][it]*"
        """What to scan for: it matches the three kinds of keys, and little else."""

    def instance(self, service: str, id: str) -> str:
        return f"{self.hashes}{service}:{id}"

    def instances(self, service: str) -> str:
        return f"{self.sets}{service}"

    def heartbeats(self, service: str) -> str:
        return f"{self.zsets}{service}"

    def channel(self, service: str) -> str:
        return f"{self.channels}{service}"


def of_v2(keys: RedisKeys, key: str) -> bool:
    """Whether a key is one of v2, though it may look like one of v1: with one prefix for both they
    lie side by side."""
    start = f"{keys.services}:"
    if not key.startswith(start):
        return False
    service, _, rest = key.removeprefix(start).partition(":")
    if keys.cluster and service.startswith("{"):
        return True
    return rest in _reserved() or rest.startswith("instance:")


@functools.cache
def _reserved() -> frozenset[str]:
    """What follows the service in v2's keys, beside those of instances."""
    sample = RedisKeys("p").of("s")
    start = f"{sample.base}:"
    told = [value for value in vars(sample).values() if value.startswith(start)]
    return frozenset(value.removeprefix(start) for value in told)


@dataclass(frozen=True, slots=True)
class Keyspace:
    """What the keys alone tell."""

    services: Mapping[str, frozenset[str]]
    """Ids of the hashes by service; a service may have none."""
    strays: tuple[str, ...]
    """Keys that begin like those of v1 and are none."""


def sorted_out(found: Iterable[str], v1: V1Keys, v2: RedisKeys) -> Keyspace:
    """The services among keys. A service whose name has a colon is known by its set or its
    heartbeats; of a hash that neither names, the service ends at the first colon."""
    mine = [key for key in found if not of_v2(v2, key)]
    named = {
        key.removeprefix(start)
        for key in mine
        for start in (v1.sets, v1.zsets)
        if key.startswith(start)
    }
    ids: dict[str, set[str]] = {service: set() for service in named}
    with_colon = sorted((name for name in named if ":" in name), key=len, reverse=True)
    strays = []
    for key in mine:
        if not key.startswith(v1.hashes):
            continue
        rest = key.removeprefix(v1.hashes)
        owner = next((name for name in with_colon if rest.startswith(f"{name}:")), None)
        service, colon, id = (
            rest.partition(":") if owner is None else (owner, ":", rest[len(owner) + 1 :])
        )
        if colon and service and id:
            ids.setdefault(service, set()).add(id)
        else:
            strays.append(key)
    return Keyspace({name: frozenset(ids[name]) for name in sorted(ids)}, tuple(strays))


@dataclass(frozen=True, slots=True)
class Record:
    """A hash of v1, understood."""

    instance: Instance
    fields: Mapping[str, str]
    """As v2 writes it, but for the times."""
    registered: int
    """In ms; 0 where it does not say."""
    notes: tuple[str, ...] = ()
    """What was taken for something else than what it says."""
    bridged: bool = False
    """Whether the bridge wrote it, from v2."""


def understood(service: str, id: str, told: Mapping[str, str], *, limit: int) -> Record:
    """What a hash says. Raises `InvalidRequest` where that is no instance."""
    if missing := [name for name in ("host", "port") if not told.get(name)]:
        raise InvalidRequest(f"has no {' and no '.join(missing)}")
    port = _number(told["port"])
    if port is None or port != int(port):
        raise InvalidRequest(f"has a wrong port: {quoted(told['port'])} is no number")
    notes: list[str] = []
    instance = Instance(
        service,
        told["host"],
        int(port),
        protocol=told.get("protocol", "tcp").lower(),
        version=told.get("version", "0.0.0"),
        zone=told.get("zone", ""),
        weight=_weight(told, notes),
        metadata=RecordedMetadata(_metadata(told, notes)),
        id=id,
        incarnation=INCARNATION,
        status=Status(healthy=_healthy(told, notes)),
    )
    written = tiers.encode(instance)
    if (size := tiers.size(written)) > limit:
        raise InvalidRequest(f"has {size} bytes of metadata, over the limit of {limit}")
    since = registered(told)
    if (stamp := told.get("timestamp", "")) and not since:
        notes.append(f"timestamp {quoted(stamp)} is no time: the last heartbeat counts")
    return Record(instance, written, since, tuple(notes), is_bridged(told))


def registered(told: Mapping[str, str]) -> int:
    """When a hash says that it was written, in ms; 0 where it does not say."""
    return int(milliseconds(_number(told.get("timestamp", ""))) or 0)


def has_address(told: Mapping[str, str]) -> bool:
    """Whether a hash names a place to call, whatever else is wrong with it."""
    try:
        understood("any", "any", {name: told.get(name, "") for name in ("host", "port")}, limit=9)
    except InvalidRequest:
        return False
    return True


def is_bridged(told: Mapping[str, str]) -> bool:
    """Whether the bridge wrote a hash, and nobody since."""
    return BRIDGED in told and told[BRIDGED] == told.get("timestamp")


def milliseconds(time: float | None) -> float | None:
    """A time in ms, given in ms or in s; None where it is none."""
    if time is None or not 0 < time < _NONSENSE:
        return None
    return time * 1000 if time < _SECONDS else time


def counts_in_seconds(scores: Iterable[float]) -> bool:
    """Whether the heartbeats of a service are in s."""
    return any(0 < score < _SECONDS for score in scores)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _weight(told: Mapping[str, str], notes: list[str]) -> float:
    text = told.get("weight", "")
    weight = _number(text) if text else 1.0
    if weight is None or weight < 0:
        notes.append(f"weight {quoted(text)} is none: 1 is taken")
        return 1.0
    return weight


def _healthy(told: Mapping[str, str], notes: list[str]) -> bool:
    text = told.get("healthy", "true").lower()
    if text not in (*_TRUE, *_FALSE):
        notes.append(f"healthy {quoted(text)} is neither true nor false: it counts as false")
    return text in _TRUE


def _metadata(told: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    extra = {
        name: value
        for name, value in told.items()
        if name not in _NAMED and name not in _OURS and name != BRIDGED
    }
    return extra | _parsed(told.get("metadata", ""), notes)


def _parsed(text: str, notes: list[str]) -> dict[str, str]:
    if text.strip() in ("", "{}", "null"):
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: _text(bytes(value)) for name, value in found.items()}
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeEncodeError, RecursionError):
        pass
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    pairs = [part.strip().partition("=") for part in re.split(r"[,;&]", inner)]
    names = [name for name, equals, _ in pairs if name and equals]
    if len(set(names)) == len(pairs):
        return {name: value for name, _, value in pairs}
    notes.append("metadata is neither JSON nor a=1,b=2: it is kept whole, under that name")
    return {"metadata": text}


def _text(value: bytes) -> str:
    """A JSON value as text: text as it is, anything else as it is written."""
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    return value.decode()


def mirrored(instance: Instance, registered: int, *, in_seconds: bool) -> dict[str, str]:
    """An instance of v2 as the bridge writes it for readers of v1. To them, one that is disabled or
    about to leave is unhealthy: they know no other word."""
    status = instance.status
    well = instance.enabled and status.healthy and status.state == "up"
    stamp = str(registered // 1000 if in_seconds else registered)
    return {
        "host": instance.host,
        "port": str(instance.port),
        "healthy": "true" if well else "false",
        "timestamp": stamp,
        "weight": str(values.number(instance.weight)),
        "metadata": values.encode(dict(instance.metadata)).decode(),
        BRIDGED: stamp,
    }
