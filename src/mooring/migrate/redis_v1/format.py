"""Version 1.0 (v1) in Redis: its keys and records. Pure.

    [{prefix}:]services:{svc}:{id}     Hash   host, port, healthy, timestamp, weight, metadata
    [{prefix}:]service_instances:{svc} Set    the ids that readers use
    [{prefix}:]heartbeat:{svc}         ZSet   ids by last heartbeat, on the clock of each instance
    [{prefix}:]service_change:{svc}    channel

v1 leaves several cases undefined; docs/migrate.md describes how they are interpreted here. Times
are in ms, or in s if they would otherwise be before 1973.
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
from mooring.registry.redis import layout
from mooring.registry.redis.layout import RedisKeys

INCARNATION = "v1"
"""The incarnation of copies in v2. Those of v2 processes are unique and never equal this one."""

BRIDGED = "bridged"
"""A field that the bridge adds to v1 records and that equals `timestamp`. If a v1 process registers
over such a record, the two differ, and the record belongs to that process."""

_V1_FIELDS = {"host", "port", "healthy", "timestamp", "weight", "metadata"}
_V2_FIELDS = {"protocol", "version", "zone"}
_MAX_SECONDS, _MAX_MILLISECONDS = 1e11, 1e14
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
        """For SCAN: matches the three kinds of keys, and few others."""

    def instance(self, service: str, id: str) -> str:
        return f"{self.hashes}{service}:{id}"

    def instances(self, service: str) -> str:
        return f"{self.sets}{service}"

    def heartbeats(self, service: str) -> str:
        return f"{self.zsets}{service}"

    def channel(self, service: str) -> str:
        return f"{self.channels}{service}"


def is_v2_key(keys: RedisKeys, key: str) -> bool:
    """Whether a key belongs to v2 even if it looks like a v1 key: both may use the same prefix."""
    start = f"{keys.services}:"
    if not key.startswith(start):
        return False
    service, _, rest = key.removeprefix(start).partition(":")
    if keys.cluster and service.startswith("{"):
        return True
    return rest in _v2_suffixes() or rest.startswith("instance:")


@functools.cache
def _v2_suffixes() -> frozenset[str]:
    """The part after the service in v2 keys, except for instances."""
    sample = RedisKeys("p").of("s")
    start = f"{sample.base}:"
    keys = [value for value in vars(sample).values() if str(value).startswith(start)]
    return frozenset(key.removeprefix(start) for key in keys)


@dataclass(frozen=True, slots=True)
class V1Keyspace:
    services: Mapping[str, frozenset[str]]
    """The ids with hashes by service; may be empty."""
    strays: tuple[str, ...]
    """Keys that only start like v1 keys."""


def parse_keyspace(keys: Iterable[str], v1: V1Keys, v2: RedisKeys) -> V1Keyspace:
    """Find the services among keys. A service whose name contains a colon is recognized by its set
    or sorted set; otherwise the name of the service in a hash key ends at the first colon."""
    candidates = [key for key in keys if not is_v2_key(v2, key)]
    named = {*_suffixes(candidates, v1.sets), *_suffixes(candidates, v1.zsets)}
    ids: dict[str, set[str]] = {service: set() for service in named}
    with_colon = sorted((name for name in named if ":" in name), key=len, reverse=True)
    strays = []
    for rest in _suffixes(candidates, v1.hashes):
        service, id = _split_hash_key(rest, with_colon)
        if service and id:
            ids.setdefault(service, set()).add(id)
        else:
            strays.append(f"{v1.hashes}{rest}")
    return V1Keyspace({name: frozenset(ids[name]) for name in sorted(ids)}, tuple(strays))


def _suffixes(keys: Iterable[str], start: str) -> list[str]:
    return [key.removeprefix(start) for key in keys if key.startswith(start)]


def _split_hash_key(rest: str, with_colon: Iterable[str]) -> tuple[str, str]:
    """Service and id; the id is empty if there is none."""
    owner = next((name for name in with_colon if rest.startswith(f"{name}:")), None)
    if owner is not None:
        return owner, rest[len(owner) + 1 :]
    service, _, id = rest.partition(":")
    return service, id


@dataclass(frozen=True, slots=True)
class V1Record:
    instance: Instance
    fields: Mapping[str, str]
    """The record in v2, without the times."""
    registered: int
    """In ms; 0 if unknown."""
    notes: tuple[str, ...] = ()
    """Values that were replaced because they are invalid."""
    bridged: bool = False
    """Whether the bridge wrote it, from v2."""


def parse_record(service: str, id: str, fields: Mapping[str, str], *, limit: int) -> V1Record:
    """Parse a v1 hash. Raises `InvalidRequest` if it is not a valid instance."""
    if missing := [name for name in ("host", "port") if not fields.get(name)]:
        raise InvalidRequest(f"has no {' and no '.join(missing)}")
    port = _number(fields["port"])
    if port is None or port != int(port):
        raise InvalidRequest(f"has an invalid port: {quoted(fields['port'])} is not a number")
    notes: list[str] = []
    instance = Instance(
        service,
        fields["host"],
        int(port),
        protocol=fields.get("protocol", "tcp").lower(),
        version=fields.get("version", "0.0.0"),
        zone=fields.get("zone", ""),
        weight=_weight(fields, notes),
        metadata=RecordedMetadata(_metadata(fields, notes)),
        id=id,
        incarnation=INCARNATION,
        status=Status(healthy=_healthy(fields, notes)),
    )
    v2_fields = layout.encode(instance)
    if (size := layout.size(v2_fields)) > limit:
        raise InvalidRequest(f"has {size} bytes of metadata, more than the limit of {limit}")
    registered = registration_time(fields)
    if (timestamp := fields.get("timestamp", "")) and not registered:
        notes.append(
            f"timestamp {quoted(timestamp)} is not a time: the last heartbeat is used instead"
        )
    return V1Record(instance, v2_fields, registered, tuple(notes), is_bridged(fields))


def registration_time(fields: Mapping[str, str]) -> int:
    """The timestamp of a hash in ms; 0 if unknown."""
    return int(to_milliseconds(_number(fields.get("timestamp", ""))) or 0)


def is_bridged(fields: Mapping[str, str]) -> bool:
    """Whether the bridge was the last writer of a hash."""
    return BRIDGED in fields and fields[BRIDGED] == fields.get("timestamp")


def to_milliseconds(time: float | None) -> float | None:
    """A time in ms, given in ms or in s; None if it is invalid."""
    if time is None or not 0 < time < _MAX_MILLISECONDS:
        return None
    return time * 1000 if time < _MAX_SECONDS else time


def in_seconds(scores: Iterable[float]) -> bool:
    """Whether the heartbeats of a service are in s."""
    return any(0 < score < _MAX_SECONDS for score in scores)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _weight(fields: Mapping[str, str], notes: list[str]) -> float:
    text = fields.get("weight", "")
    weight = _number(text) if text else 1.0
    if weight is None or weight < 0:
        notes.append(f"weight {quoted(text)} is invalid: 1 is used instead")
        return 1.0
    return weight


def _healthy(fields: Mapping[str, str], notes: list[str]) -> bool:
    text = fields.get("healthy", "true").lower()
    if text not in (*_TRUE, *_FALSE):
        notes.append(f"healthy {quoted(text)} is neither true nor false: false is used")
    return text in _TRUE


def _metadata(fields: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    extra = {
        name: value
        for name, value in fields.items()
        if name not in _V1_FIELDS and name not in _V2_FIELDS and name != BRIDGED
    }
    return extra | _parse_metadata(fields.get("metadata", ""), notes)


def _parse_metadata(text: str, notes: list[str]) -> dict[str, str]:
    if text.strip() in ("", "{}", "null"):
        return {}
    try:
        parsed = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: _as_text(bytes(value)) for name, value in parsed.items()}
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeEncodeError, RecursionError):
        pass
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    pairs = [part.strip().partition("=") for part in re.split(r"[,;&]", inner)]
    names = [name for name, equals, _ in pairs if name and equals]
    if len(set(names)) == len(pairs):
        return {name: value for name, _, value in pairs}
    notes.append("metadata is neither JSON nor a=1,b=2: the text is kept under the name metadata")
    return {"metadata": text}


def _as_text(value: bytes) -> str:
    """A JSON string as its text, any other JSON value unchanged."""
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    return value.decode()


def v1_fields(instance: Instance, registered: int, *, in_seconds: bool) -> dict[str, str]:
    """The v1 record of a v2 instance. One that is disabled or draining is unhealthy there."""
    status = instance.status
    healthy = instance.enabled and status.healthy and status.state == "up"
    timestamp = str(registered // 1000 if in_seconds else registered)
    return {
        "host": instance.host,
        "port": str(instance.port),
        "healthy": "true" if healthy else "false",
        "timestamp": timestamp,
        "weight": str(values.number(instance.weight)),
        "metadata": values.encode(dict(instance.metadata)).decode(),
        BRIDGED: timestamp,
    }


class V1Service(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: str
    hashes: Mapping[str, Mapping[str, str] | None] = {}
    """By id; None if the key is not a hash."""
    members: frozenset[str] = frozenset()
    scores: Mapping[str, float] = {}
    """Unconverted: in ms or in s."""

    @property
    def ids(self) -> list[str]:
        return sorted({*self.hashes, *self.members, *self.scores})

    @property
    def bridged(self) -> set[str]:
        """The ids whose hash the bridge wrote last."""
        return {id for id, fields in self.hashes.items() if fields and is_bridged(fields)}

    def only(self, ids: Iterable[str]) -> V1Service:
        """The same service with these ids only."""
        chosen = set(ids)
        return V1Service(
            self.service,
            {id: fields for id, fields in self.hashes.items() if id in chosen},
            self.members & chosen,
            {id: score for id, score in self.scores.items() if id in chosen},
        )

    def heartbeat(self, id: str, record: V1Record, now: int) -> int:
        """The last heartbeat in ms; never later than now, whatever the clock of the instance."""
        heartbeat = to_milliseconds(self.scores.get(id))
        return min(int(heartbeat or record.registered), now)

    def is_alive(self, id: str, since: int) -> bool:
        """Whether v1 readers find and can call it, and its last heartbeat is later than `since`."""
        fields = self.hashes.get(id)
        if not fields or id not in self.members:
            return False
        address = {name: fields.get(name, "") for name in ("host", "port")}
        try:
            parse_record("any", "any", address, limit=9)
        except InvalidRequest:
            return False
        return (to_milliseconds(self.scores.get(id)) or registration_time(fields)) > since
