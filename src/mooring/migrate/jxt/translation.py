"""Translates the values of old keys to new parts, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mooring.errors import Undecipherable
from mooring.migrate.jxt.format import OldKeys, OldPart
from mooring.model import JSON
from mooring.store.contract import Entry
from mooring.tenants.keys import DOMAIN, PLATFORM, identity, is_path, kind_of, name_of
from mooring.tenants.model import (
    SETTINGS,
    STORAGE_FIELDS,
    Database,
    UnreadableValue,
    decode,
    encode,
    json_object,
    parse_part,
    to_record,
)
from mooring.tenants.publish.merge import unsealed
from mooring.tenants.secrets import Keyring, Secret
from mooring.tenants.validation import FIELDS, host

DEFAULT_SERVICE = "default"
"""The service of a database that the previous format configures for a whole tenant."""

_NO_KEYS = Keyring()
_NAMES = {"database": ("serviceCode",), "ftp": ("username",), "meta": ("code", "name")}
"""The fields that must be valid names, by the kind of part."""
_FRACTION = 1024
"""Storage in bytes is converted to larger units if the result is a multiple of 1/1024."""


class TranslatedPart(msgspec.Struct, frozen=True):
    value: JSON
    """In the new format."""
    key: bytes
    modified: int


class TranslatedKey(msgspec.Struct, frozen=True):
    """An old key of a unit, and the result of its translation."""

    key: bytes
    modified: int
    paths: tuple[str, ...] = ()
    """The parts from this key."""
    problems: tuple[str, ...] = ()
    """Why some of it cannot be parsed, or is invalid in the new format."""
    readable: bool = True
    superseded: bool = False
    """It belongs to the previous format, and another key has the same part."""


class Translation(msgspec.Struct, frozen=True):
    """The old keys of a unit in the new format."""

    unit: int
    parts: Mapping[str, TranslatedPart]
    keys: Mapping[bytes, TranslatedKey]
    raw: Mapping[bytes, bytes]
    hidden: frozenset[str]
    """Parts with unknown values; `ftp/` for all users, `ftp/?` for those from no other key."""

    @property
    def values(self) -> dict[str, JSON]:
        return {path: part.value for path, part in self.parts.items()}

    def changed(self, keys: OldKeys, writes: Mapping[bytes, bytes | None]) -> Translation:
        """The translation after these writes; None deletes a key."""
        raw = {name: value for name, value in {**self.raw, **writes}.items() if value is not None}
        modified = {name: self.keys[name].modified for name in raw if name not in writes}
        entries = [Entry(name, value, 0, modified.get(name, 0), 0) for name, value in raw.items()]
        return translate(keys, self.unit, entries)

    def hides(self, path: str) -> bool:
        """Whether it is unknown what the old keys have for a part."""
        kind = kind_of(path)
        if path in self.hidden or f"{kind}/" in self.hidden:
            return True
        return path not in self.parts and f"{kind}/?" in self.hidden


def translate(keys: OldKeys, unit: int, entries: Iterable[Entry]) -> Translation:
    """Translate the old keys of a unit. Ignores keys of other units."""
    places = [(keys.parse(entry.key), entry) for entry in entries]
    own = [
        (place, entry)
        for place, entry in places
        if isinstance(place, OldPart) and place.unit == unit
    ]
    own.sort(key=lambda pair: pair[0].previous)  # the previous format has the lowest precedence
    parts: dict[str, TranslatedPart] = {}
    hidden: set[str] = set()
    translated = {entry.key: _translate_key(place, entry, parts, hidden) for place, entry in own}
    raw = {entry.key: entry.value for _, entry in own}
    translation = Translation(unit, parts, translated, raw, frozenset(hidden))
    visible = {path: part for path, part in parts.items() if not translation.hides(path)}
    return msgspec.structs.replace(translation, parts=visible)


def _translate_key(
    place: OldPart, entry: Entry, parts: dict[str, TranslatedPart], hidden: set[str]
) -> TranslatedKey:
    """Adds the parts to `parts`, unless an earlier key has them, or, if unknown, to `hidden`."""
    try:
        value = parse(place, entry.value)
    except UnreadableValue as error:
        hidden.add(_hidden_by(place))
        return TranslatedKey(entry.key, entry.modified, problems=(str(error),), readable=False)
    valid: list[str] = []
    problems: list[str] = []
    contents = list(_parts_in(place, value))
    for path, part, problem in contents:
        if problem := problem or _validate(place.unit, path, part):
            problems.append(problem)
            hidden |= {path} if path else set()
        elif path in valid:
            problems.append(f"{path} appears twice: the first one counts")
        elif path not in parts:
            parts[path] = TranslatedPart(part, entry.key, entry.modified)
            valid.append(path)
    superseded = place.previous and not valid and not problems and bool(contents)
    return TranslatedKey(
        entry.key, entry.modified, tuple(valid), tuple(problems), superseded=superseded
    )


def _hidden_by(place: OldPart) -> str:
    """The parts that are unknown if a key is unreadable."""
    if place.previous:
        return f"{place.path}/?"
    return "ftp/" if place.path == "ftp" else place.path


def parse(place: OldPart, raw: bytes) -> JSON:
    """Parse the value of a key. Raises `UnreadableValue`."""
    if place.path in DOMAIN and raw.strip() in (b"null", b""):
        return [] if place.path == "domain/aliases" else ""  # Go programs write empty values so
    if place.path == "ftp":
        value = decode(PLATFORM, raw)  # any JSON
        if isinstance(value, dict) and not {"ftpConfigs", "username"} & value.keys():
            raise UnreadableValue("neither a list of users nor a user")
        _users(value)  # raises if they are not a list
        return value
    return decode(place.path, raw)


def _users(value: JSON) -> list[JSON]:
    """The users in any of the old forms. Raises `UnreadableValue`."""
    if isinstance(value, dict):
        value = value.get("ftpConfigs", [value])
    if value is not None and not isinstance(value, list):
        raise UnreadableValue("not a list of users")
    return value or []


def _parts_in(place: OldPart, value: JSON) -> Iterator[tuple[str, JSON, str]]:
    """The parts in a key: path, value, and a problem if it has one."""
    if place.path == "ftp":
        yield from _ftp_parts(place.unit, value)
    elif isinstance(value, dict):
        yield _part_of_object(place, value)
    elif value is None:
        yield place.path, value, "it is null"
    elif kind_of(place.path) != "domain" or value != "":  # an empty domain means no domain
        yield place.path, value, ""


def _part_of_object(place: OldPart, value: dict[str, JSON]) -> tuple[str, JSON, str]:
    """As `_parts_in`. The new value has the names that its path has."""
    path = place.path
    if kind_of(path) == "database":
        path = f"database/{name_of(path) or value.get('serviceCode') or DEFAULT_SERVICE}"
    if place.unit:
        value = {**value, **identity(place.unit, path)}
    try:
        return path, _new_storage(value) if path == "storage" else value, ""
    except UnreadableValue as error:
        return path, value, str(error)


def _ftp_parts(unit: int, value: JSON) -> Iterator[tuple[str, JSON, str]]:
    if extra := _extra_ftp_fields(unit, value):
        yield "", None, f"{extra} beside the users cannot be migrated"
    for number, user in enumerate(_users(value), 1):
        name = user.get("username") if isinstance(user, dict) else None
        if not isinstance(user, dict) or not isinstance(name, str) or not name:
            yield "", None, f"user {number} has no name"
        else:
            yield f"ftp/{name}", {**user, **identity(unit, f"ftp/{name}")}, ""


def _extra_ftp_fields(unit: int, value: JSON) -> str:
    """Fields beside a list of users that have a meaning."""
    if not isinstance(value, dict) or "ftpConfigs" not in value:
        return ""
    names = {name for name, inner in value.items() if inner is not None} - {"ftpConfigs"}
    return ", ".join(sorted(names - ({"tenantId"} if value.get("tenantId") == unit else set())))


def _new_storage(value: dict[str, JSON]) -> JSON:
    """Storage in the new units, or in bytes if they are not exact: every reader supports those."""
    fields = dict(value)
    for old, new, size in STORAGE_FIELDS:
        count = fields.get(old)
        if count is not None and (isinstance(count, bool) or not isinstance(count, int | float)):
            raise UnreadableValue(f"{old} is not a number")
        if count is None or fields.get(new) is not None:
            fields.pop(old, None)
        elif count * _FRACTION % size == 0:
            del fields[old]
            fields[new] = int(count // size) if count % size == 0 else count / size
    return fields


def _validate(unit: int, path: str, value: JSON) -> str:
    """Why no reader can parse a part, or its name or an indexed field breaks a rule; or empty."""
    if unit and (problem := _validate_names(path, value)):
        return problem
    try:
        if unit:
            parse_part(unit, path, value, _NO_KEYS)
        elif path in SETTINGS and isinstance(value, dict):
            to_record(SETTINGS[path], value)
    except UnreadableValue as error:
        return str(error)
    return ""


def _validate_names(path: str, value: JSON) -> str:
    kind = kind_of(path)
    if not is_path(path):
        return f"{path} is not the name of a part: it is empty or contains a slash"
    if kind == "domain":
        hosts = value if isinstance(value, list) else [value]
        return next((f"{path} {problem}" for problem in map(host, hosts) if problem), "")
    fields = value if isinstance(value, dict) else {}
    for field in _NAMES.get(kind, ()):
        name = fields.get(field)
        if name not in (None, "") and (problem := FIELDS[kind][field](name)):
            return f"{field} {problem}"
    return ""


def is_same(unit: int, path: str, one: JSON, other: JSON, ring: Keyring) -> bool:
    """Whether two values mean the same, regardless of form and encryption of passwords."""
    if one == other:
        return True
    if not unit or kind_of(path) == "domain":
        return False
    try:
        first, second = (parse_part(unit, path, value, ring) for value in (one, other))
    except UnreadableValue:
        return False
    if isinstance(first, Database) and isinstance(second, Database):
        return msgspec.structs.replace(first, password=second.password) == second and (
            _is_same_secret(first.password, second.password)
        )
    return first == second


def _is_same_secret(one: Secret | None, other: Secret | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    try:
        return one.reveal() == other.reveal()
    except Undecipherable:
        return False


def translate_back(
    keys: OldKeys, old: Translation, changes: Mapping[str, JSON], ring: Keyring
) -> dict[bytes, bytes | None]:
    """The old keys to write for changed new parts; None deletes a part or a key. The changes must
    not include parts that `old` hides, or for which `why_locked` returns a reason."""
    writes: dict[bytes, bytes | None] = {}
    users: dict[str, JSON] = {}
    for path, value in changes.items():
        key = _old_key(keys, old, path)
        if value is None:
            writes |= dict.fromkeys(_superseded(keys, old, path))
        if key == keys.part(old.unit, path) and kind_of(path) == "ftp":
            users[name_of(path)] = value
        elif value is None:
            writes[key] = None
        else:
            writes[key] = _in_old_form(path, value, old.raw.get(key), ring)
    if users:
        key = keys.part(old.unit, "ftp/")
        writes[key] = _with_users(old.raw.get(key), users)
    return writes


def why_locked(keys: OldKeys, old: Translation, path: str, value: JSON, ring: Keyring) -> str:
    """Why a part cannot be written to its old key: the password there is in clear text, and the new
    one cannot be decrypted. Empty if it can be written."""
    try:
        _in_old_form(path, value, old.raw.get(_old_key(keys, old, path)), ring)
    except Undecipherable as error:
        key_id = value.get("passwordKeyId") if isinstance(value, dict) else None
        return (
            "the old key has a password in clear text, and the new one cannot be decrypted (key "
            f"{key_id}): {error}"
        )
    return ""


def _old_key(keys: OldKeys, old: Translation, path: str) -> bytes:
    return old.parts[path].key if path in old.parts else keys.part(old.unit, path)


def _superseded(keys: OldKeys, old: Translation, path: str) -> list[bytes]:
    """The keys of the previous format that would restore a deleted part."""
    superseded = []
    for translated_key in old.keys.values():
        place = keys.parse(translated_key.key)
        if translated_key.superseded and isinstance(place, OldPart) and place.path == kind_of(path):
            superseded.append(translated_key.key)
    return superseded


def _in_old_form(path: str, value: JSON, before: bytes | None, ring: Keyring) -> bytes:
    """Encode a part in the form that its old key has."""
    if path in ("domain/primary", "domain/internal"):
        quoted = before is not None and before.strip().startswith(b'"')
        return msgspec.json.encode(value) if quoted else encode(path, value)
    if isinstance(value, dict) and before is not None:
        old_fields = json_object(before)
        if path == "storage":
            value = _old_storage(value, old_fields)
        elif kind_of(path) == "database" and "password" in old_fields:
            return msgspec.json.encode(unsealed(value, ring))
    return msgspec.json.encode(value)


def _old_storage(value: dict[str, JSON], old_fields: Mapping[str, JSON]) -> dict[str, JSON]:
    fields = dict(value)
    for old, new, unit in STORAGE_FIELDS:
        size = fields.get(new)
        if old in old_fields and isinstance(size, int | float):
            del fields[new]
            fields[old] = round(size * unit)
    return fields


def _with_users(before: bytes | None, changes: Mapping[str, JSON]) -> bytes | None:
    """A list with changed, added and removed users, in its present form. Other elements stay."""
    value = {"ftpConfigs": []} if before is None else parse(OldPart(0, "ftp"), before)
    users = _changed_users(_users(value), changes)
    if not users:
        return None
    if isinstance(value, list):
        return msgspec.json.encode(users)
    if isinstance(value, dict) and "ftpConfigs" not in value and len(users) == 1:
        return msgspec.json.encode(users[0])
    around = value if isinstance(value, dict) and "ftpConfigs" in value else {}
    return msgspec.json.encode({**around, "ftpConfigs": users})


def _changed_users(listed: Iterable[JSON], changes: Mapping[str, JSON]) -> list[JSON]:
    left = dict(changes)
    users: list[JSON] = []
    for user in listed:
        name = user.get("username") if isinstance(user, dict) else None
        if not isinstance(name, str) or name not in changes:
            users.append(user)
        elif name in left and (changed := left.pop(name)) is not None:
            users.append(changed)
    return users + [added for added in left.values() if added is not None]
