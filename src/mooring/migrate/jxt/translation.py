"""Translation between old and new keys of a tenant, in both directions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mooring.errors import Undecipherable
from mooring.migrate.jxt.format import OldKeys, OldPart
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.keys import COMMON, DOMAIN, PLATFORM, is_path, kind_of, name_of
from mooring.tenants.model import (
    Database,
    Resolver,
    StorageDirectory,
    TenantRecord,
    UnreadableValue,
    decode,
    encode,
    parse_part,
    to_record,
)
from mooring.tenants.secrets import Keyring, Secret
from mooring.tenants.validation import FIELDS, host

DEFAULT_SERVICE = "default"
"""The service of a database that was configured for a whole tenant."""

_NO_KEYS = Keyring()
_COMMON: Mapping[str, type[TenantRecord]] = dict(
    zip(COMMON, (Resolver, StorageDirectory), strict=True)
)
_FINE = 1024
"""Storage in bytes is told in larger units where these come in whole fractions of that size."""


class Old(msgspec.Struct, frozen=True):
    """A part as the old keys have it."""

    value: JSON
    """As it is to be written today."""
    key: bytes
    modified: int


class Finding(msgspec.Struct, frozen=True):
    """An old key of a unit, and what became of it."""

    key: bytes
    modified: int
    paths: tuple[str, ...] = ()
    """The parts that it gives."""
    problems: tuple[str, ...] = ()
    """What of it cannot be understood, or written today."""
    readable: bool = True
    """Whether it may be written again: nothing of it would be lost."""
    superseded: bool = False
    """It is of the generation before, and a later one has the same part."""


class Translation(msgspec.Struct, frozen=True):
    """What the old keys of a unit say."""

    unit: int
    parts: Mapping[str, Old]
    findings: Mapping[bytes, Finding]
    raw: Mapping[bytes, bytes]
    """What the keys hold."""
    hidden: frozenset[str]
    """Parts of which nothing can be said; `ftp/` for all users, `ftp/?` for those that no other
    key gives."""

    def hides(self, path: str) -> bool:
        kind = kind_of(path)
        if path in self.hidden or f"{kind}/" in self.hidden:
            return True
        return path not in self.parts and f"{kind}/?" in self.hidden


def translated(keys: OldKeys, unit: int, entries: Iterable[Entry]) -> Translation:
    """What the old keys of a unit say today. Keys that are not of this unit are left out."""
    parts: dict[str, Old] = {}
    findings: dict[bytes, Finding] = {}
    raw: dict[bytes, bytes] = {}
    hidden: set[str] = set()
    places = [(keys.understand(entry.key), entry) for entry in entries]
    known = [(place, entry) for place, entry in places if isinstance(place, OldPart)]
    known.sort(key=lambda each: each[0].former)  # the later generation counts
    for place, entry in known:
        if place.unit != unit:
            continue
        name = entry.key
        raw[name] = entry.value
        try:
            value = read(place, entry.value)
        except UnreadableValue as error:
            findings[name] = Finding(name, entry.modified, problems=(str(error),), readable=False)
            hidden.add(_hidden(place))
            continue
        good: list[str] = []
        problems: list[str] = []
        given = list(_given(unit, place, value))
        for path, told, problem in given:
            problem = problem or _wrong(unit, path, told)
            if problem:
                problems.append(problem)
                hidden |= {path} if path else set()
            elif path in good:
                problems.append(f"{path} is there twice: the first counts")
            elif path not in parts:
                parts[path] = Old(told, name, entry.modified)
                good.append(path)
        superseded = place.former and not good and not problems and bool(given)
        findings[name] = Finding(
            name, entry.modified, tuple(good), tuple(problems), superseded=superseded
        )
    whole = Translation(unit, parts, findings, raw, frozenset(hidden))
    clear = {path: part for path, part in parts.items() if not whole.hides(path)}
    return msgspec.structs.replace(whole, parts=clear)


def _hidden(place: OldPart) -> str:
    """What a key that cannot be read leaves in the dark."""
    if place.former:
        return f"{place.path}/?"
    return "ftp/" if place.path == "ftp" else place.path


def read(place: OldPart, raw: bytes) -> JSON:
    """What a key holds. Raises `UnreadableValue`."""
    if place.path in DOMAIN and raw.strip() in (b"null", b""):
        return [] if place.path == "domain/aliases" else ""  # as Go writes what is empty
    if place.path == "ftp":
        value = decode(PLATFORM, raw)  # any JSON
        if isinstance(value, dict) and not {"ftpConfigs", "username"} & value.keys():
            raise UnreadableValue("neither a list of users nor one of them")
        if not isinstance(users_of(value), list):
            raise UnreadableValue("not a list of users")
        return value
    return decode(place.path, raw)


def users_of(value: JSON) -> JSON:
    """The users in whatever form they were written."""
    if isinstance(value, dict):
        value = value.get("ftpConfigs", [value])
    return [] if value is None else value


def _given(unit: int, place: OldPart, value: JSON) -> Iterator[tuple[str, JSON, str]]:
    """The parts that a key gives: path, value, and what is wrong with it."""
    path = place.path
    if path == "ftp":
        users = users_of(value)
        if beside := _beside(unit, value):
            yield "", None, f"there is no place for {beside} beside the users"
        for number, user in enumerate(users if isinstance(users, list) else [], 1):
            name = user.get("username") if isinstance(user, dict) else None
            if not isinstance(user, dict) or not isinstance(name, str) or not name:
                yield "", None, f"user {number} has no name"
            else:
                yield f"ftp/{name}", {**user, "tenantId": unit, "username": name}, ""
    elif path == "database" and isinstance(value, dict):
        service = str(value.get("serviceCode") or DEFAULT_SERVICE)
        yield f"database/{service}", {**value, "tenantId": unit, "serviceCode": service}, ""
    elif kind_of(path) == "database" and isinstance(value, dict):
        yield path, {**value, "tenantId": unit, "serviceCode": name_of(path)}, ""
    elif path == "meta" and isinstance(value, dict):
        yield path, {**value, "id": unit}, ""
    elif path == "storage" and isinstance(value, dict):
        try:
            yield path, _today(unit, value), ""
        except UnreadableValue as error:
            yield path, value, str(error)
    elif value is None:
        yield path, value, "it is null"
    elif kind_of(path) != "domain" or value != "":  # an empty domain is none
        yield path, value, ""


def _beside(unit: int, value: JSON) -> str:
    """What stands beside a list of users, and says something."""
    if not isinstance(value, dict) or "ftpConfigs" not in value:
        return ""
    said = {name for name, inner in value.items() if inner is not None} - {"ftpConfigs"}
    return ", ".join(sorted(said - ({"tenantId"} if value.get("tenantId") == unit else set())))


def _today(unit: int, value: dict[str, JSON]) -> JSON:
    """Storage with its sizes in the units of today. Bytes that do not come out even stay: whoever
    reads storage understands them."""
    fields: dict[str, JSON] = {**value, "tenantId": unit}
    for old, new, size in (
        ("quotaBytes", "uploadQuotaGb", 2**30),
        ("maxFileSizeBytes", "maxFileSizeMb", 2**20),
    ):
        count = fields.get(old)
        if count is not None and (isinstance(count, bool) or not isinstance(count, int | float)):
            raise UnreadableValue(f"{old} is no number")
        if count is None or fields.get(new) is not None:
            fields.pop(old, None)
        elif count * _FINE % size == 0:
            del fields[old]
            fields[new] = int(count // size) if count % size == 0 else count / size
    return fields


def _wrong(unit: int, path: str, value: JSON) -> str:
    """Why a part cannot be written today: its name, or what an index is made of, breaks a rule, or
    no reader would understand it."""
    kind, name = kind_of(path), name_of(path)
    if not unit:
        return _wrong_common(path, value)
    if not is_path(path):
        return f"{path} cannot be the name of a part: it contains a slash, or nothing"
    if kind == "domain":
        wrong = next((each for each in map(host, _listed(value)) if each), "")
        return f"{path} {wrong}" if wrong else ""
    if kind in ("database", "ftp"):
        field = {"database": "serviceCode", "ftp": "username"}[kind]
        if wrong := FIELDS[kind][field](name):
            return f"{field} {wrong}"
    if kind == "meta" and isinstance(value, dict):
        for field in ("code", "name"):
            if value.get(field) not in (None, "") and (wrong := FIELDS[kind][field](value[field])):
                return f"{field} {wrong}"
    try:
        parse_part(unit, path, value, _NO_KEYS)
    except UnreadableValue as error:
        return str(error)
    return ""


def _wrong_common(path: str, value: JSON) -> str:
    try:
        if path in _COMMON and isinstance(value, dict):
            to_record(_COMMON[path], value)
    except UnreadableValue as error:
        return str(error)
    return ""


def _listed(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else [value]


def same(unit: int, path: str, one: JSON, other: JSON, ring: Keyring) -> bool:
    """Whether two values mean the same, however they are written and passwords are kept."""
    if one == other:
        return True
    if not unit or kind_of(path) == "domain":
        return False
    try:
        first, second = (parse_part(unit, path, each, ring) for each in (one, other))
    except UnreadableValue:
        return False
    if isinstance(first, Database) and isinstance(second, Database):
        bare = [msgspec.structs.replace(each, password=None) for each in (first, second)]
        return bare[0] == bare[1] and _same_secret(first.password, second.password)
    return first == second


def _same_secret(one: Secret | None, other: Secret | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    try:
        return one.reveal() == other.reveal()
    except Undecipherable:
        return False


def rewritten(
    keys: OldKeys, told: Translation, changes: Mapping[str, JSON], ring: Keyring
) -> dict[bytes, bytes | None]:
    """What to write into old keys, so that these parts become what they are to be; None: nothing,
    which deletes a part or a key. Parts that the translation `hides` must not be among them, nor
    those that are `locked`."""
    found: dict[bytes, bytes | None] = {}
    users: dict[str, JSON] = {}
    for path, value in changes.items():
        here = told.parts[path].key if path in told.parts else keys.part(told.unit, path)
        if value is None:
            found |= {each: None for each in _former(keys, told, path) if each != here}
        if here == keys.part(told.unit, path) and kind_of(path) == "ftp":
            users[name_of(path)] = value
        elif value is None:
            found[here] = None
        else:
            found[here] = _in_form(path, value, told.raw.get(here), ring)
    if users:
        name = keys.part(told.unit, "ftp/")
        found[name] = _with_users(told.raw.get(name), users)
    return found


def locked(keys: OldKeys, told: Translation, path: str, value: JSON, ring: Keyring) -> str:
    """Why a part cannot be written into its old key: that has a password in the clear, and the one
    of today cannot be decrypted. Empty: it can."""
    here = told.parts[path].key if path in told.parts else keys.part(told.unit, path)
    try:
        _in_form(path, value, told.raw.get(here), ring)
    except Undecipherable as error:
        of = value.get("passwordKeyId") if isinstance(value, dict) else None
        return f"the old key has a password in the clear, the new one not (key {of}): {error}"
    return ""


def _former(keys: OldKeys, told: Translation, path: str) -> list[bytes]:
    """Keys of the generation before that would give a part again, were it deleted."""
    found = []
    for finding in told.findings.values():
        place = keys.understand(finding.key)
        if finding.superseded and isinstance(place, OldPart) and place.path == kind_of(path):
            found.append(finding.key)
    return found


def _in_form(path: str, value: JSON, before: bytes | None, ring: Keyring) -> bytes:
    if path in ("domain/primary", "domain/internal"):
        quoted = before is not None and before.strip().startswith(b'"')
        return msgspec.json.encode(value) if quoted else encode(path, value)
    if isinstance(value, dict) and before is not None:
        held = _object(before)
        if path == "storage":
            value = _in_bytes(value, held)
        elif kind_of(path) == "database" and "password" in held:
            value = _in_the_clear(value, ring)
    return msgspec.json.encode(value)


def _object(raw: bytes) -> dict[str, JSON]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _in_bytes(value: dict[str, JSON], held: Mapping[str, JSON]) -> dict[str, JSON]:
    fields = dict(value)
    for old, new, unit in (
        ("quotaBytes", "uploadQuotaGb", 2**30),
        ("maxFileSizeBytes", "maxFileSizeMb", 2**20),
    ):
        size = fields.get(new)
        if old in held and isinstance(size, int | float):
            del fields[new]
            fields[old] = round(size * unit)
    return fields


def _in_the_clear(value: dict[str, JSON], ring: Keyring) -> dict[str, JSON]:
    sealed = value.get("passwordEncrypted")
    if not isinstance(sealed, str):
        return value
    text = ring.unseal(sealed, str(value.get("passwordKeyId") or ""))
    rest = {
        name: inner
        for name, inner in value.items()
        if name not in ("passwordEncrypted", "passwordKeyId")
    }
    return {**rest, "password": text}


def _with_users(before: bytes | None, changes: Mapping[str, JSON]) -> bytes | None:
    """A list with some users changed, added or taken out, in the form that it has. Whatever in it
    is no user stays."""
    try:
        value = read(OldPart(0, "ftp"), before) if before is not None else {"ftpConfigs": []}
    except UnreadableValue:  # who calls does not change what cannot be read
        value = {"ftpConfigs": []}
    listed = users_of(value)
    left = dict(changes)
    users: list[JSON] = []
    for user in listed if isinstance(listed, list) else []:
        name = user.get("username") if isinstance(user, dict) else None
        if not isinstance(name, str) or name not in changes:
            users.append(user)
        elif name in left and (wanted := left.pop(name)) is not None:
            users.append(wanted)
    users += [wanted for wanted in left.values() if wanted is not None]
    if not users:
        return None
    if isinstance(value, list):
        return msgspec.json.encode(users)
    if isinstance(value, dict) and "ftpConfigs" not in value and len(users) == 1:
        return msgspec.json.encode(users[0])
    around = value if isinstance(value, dict) and "ftpConfigs" in value else {}
    return msgspec.json.encode({**around, "ftpConfigs": users})
