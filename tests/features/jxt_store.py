"""A store in the old format, generated from a seed: what programs left there over the years, and
what it must become. It knows how to read both formats, but nothing of how the migration works."""

from __future__ import annotations

import json
import random
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mooring.migrate.jxt.reader import UnitReader
from mooring.store import Put, Store, everything
from mooring.store.export_import import batches_of
from mooring.tenants.keys import TenantKeys
from mooring.tenants.secrets import Keyring

SERVICES = ("evidence-command", "evidence-query", "file-storage", "security-management")
NAMES = ("默认租户", "华东 / 华北 分部", "R&D/QA 100%", "Société Générale", "plain", "名+名=名")

Fields = dict[str, Any]


@dataclass
class OldStore:
    """The stored values, and the expected result."""

    namespace: str = "jxt"
    entries: dict[str, bytes] = field(default_factory=dict)
    """Every key, old, foreign and broken."""
    expected: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The new parts of each tenant, by path; 0 for those that concern all tenants."""
    goes: set[str] = field(default_factory=set)
    """Old keys that may be deleted in the end."""
    stays: dict[str, str] = field(default_factory=dict)
    """Keys that must survive, and what is to be said of them; empty: nothing."""

    def tenant_key(self, id: int, rest: str) -> str:
        return f"{self.namespace}//tenants/{id}/{rest}"

    def put(self, key: str, value: object, *, stays: str | None = None) -> None:
        raw = value if isinstance(value, bytes) else encoded(value)
        assert key not in self.entries, key
        self.entries[key] = raw
        if stays is None:
            self.goes.add(key)
        else:
            self.stays[key] = stays

    def expect(self, id: int, path: str, value: object) -> None:
        self.expected.setdefault(id, {})[path] = value

    async def write(self, store: Store) -> None:
        puts = [Put(key.encode(), value) for key, value in self.entries.items()]
        for batch in batches_of(puts):
            await store.commit(*batch)

    def check_new(self, entries: Mapping[str, bytes]) -> None:
        """Assert that the new keys are exactly the expected ones, including indexes."""
        assert new_parts(self.namespace, entries) == {
            id: parts for id, parts in self.expected.items() if parts
        }
        assert indexed(self.namespace, entries) == expected_index(self.expected)

    def check_left(self, entries: Mapping[str, bytes]) -> None:
        """Assert that migrated keys are deleted, and that everything else is unchanged."""
        assert self.goes & entries.keys() == set()
        for key in self.stays:
            assert entries.get(key) == self.entries[key], key


def encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def leads(value: bytes) -> int:
    value_ = json.loads(value)
    return int(value_.get("tenantId", value_.get("id")))


def new_parts(namespace: str, entries: Mapping[str, bytes]) -> dict[int, dict[str, Any]]:
    """The new keys as any reader parses them."""
    parts: dict[int, dict[str, Any]] = {}
    for key, raw in entries.items():
        below = key.removeprefix(f"{namespace}/")
        if below == key or below.startswith("/"):
            continue
        kind, _, rest = below.partition("/")
        if kind in ("common", "platform"):
            parts.setdefault(0, {})[below] = json.loads(raw)
        id, _, path = rest.partition("/")
        if kind == "tenants" and id.isdigit() and path not in ("database", "ftp", "foreign"):
            text = path in ("domain/primary", "domain/internal")
            parts.setdefault(int(id), {})[path] = raw.decode() if text else json.loads(raw)
    return parts


def expected_index(tenants: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    claims = {}
    for id, parts in tenants.items():
        if meta := parts.get("meta"):
            claims[f"by-code/{meta['code'].lower()}"] = id
            claims[f"by-name/{meta['name']}"] = id
        for path in parts:
            if path.startswith("ftp/"):
                claims[f"ftp-user/{path.removeprefix('ftp/')}"] = id
        for host in hosts(parts):
            claims[f"host/{host.lower()}"] = id
    return claims


def indexed(namespace: str, entries: Mapping[str, bytes]) -> dict[str, int]:
    """The new indexes as any reader parses them."""
    root = f"{namespace}/tenants/_index/"
    return {
        urllib.parse.unquote(key.removeprefix(root)): leads(value)
        for key, value in entries.items()
        if key.startswith(root)
    }


FOLDERS = {
    "by-code": "tenants/by-code",
    "by-name": "tenants/by-name",
    "ftp-user": "ftp-users",
    "host": "hosts",
}


def old_indexed(namespace: str, entries: Mapping[str, bytes]) -> dict[str, int]:
    """The old indexes, with the names of the new ones."""
    names = {}
    for kind, folder in FOLDERS.items():
        root = f"{namespace}//{folder}/"
        for key, value in entries.items():
            if key.startswith(root):
                name = urllib.parse.unquote(key.removeprefix(root))
                names[f"{kind}/{name.lower() if kind == 'by-code' else name}"] = leads(value)
    return names


async def differing(store: Store, ring: Keyring, namespace: str = "jxt") -> list[str]:
    """What is not level: parts, new indexes and old ones. The sentinel is updated on both sides."""
    snapshot = await UnitReader(store, TenantKeys(namespace)).snapshot()
    parts = [
        f"{unit}: {path}"
        for unit, view in snapshot.units.items()
        for path in view.paths
        if path != "_health/sentinel"
        and path in {*view.new, *view.old.parts}
        and not view.is_same(path, ring)
    ]
    entries = await dump(store)
    expected = expected_index(new_parts(namespace, entries))
    new, old = indexed(namespace, entries), old_indexed(namespace, entries)
    return [
        *parts,
        *(f"new {name} {id}" for name, id in new.items() ^ expected.items()),
        *(f"old {name} {id}" for name, id in old.items() ^ expected.items()),
    ]


async def level(store: Store, ring: Keyring, namespace: str = "jxt") -> bool:
    return not await differing(store, ring, namespace)


def hosts(parts: Mapping[str, Any]) -> list[str]:
    single = [parts[path] for path in ("domain/primary", "domain/internal") if path in parts]
    return [*single, *parts.get("domain/aliases", [])]


async def dump(store: Store) -> dict[str, bytes]:
    return {
        entry.key.decode(errors="replace"): entry.value
        for entry in (await store.read(everything())).entries
    }


def made(seed: int, tenants: int, namespace: str = "jxt") -> OldStore:
    """An old store with this number of tenants. The first 50 have every kind of key and defect."""
    store, chance = OldStore(namespace), random.Random(seed)
    for id in range(1, tenants + 1):
        _Tenant(store, chance, id).make()
    _make_common(store)
    _make_trouble(store)
    return store


class _Tenant:
    def __init__(self, store: OldStore, chance: random.Random, id: int) -> None:
        self.store, self.chance, self.id = store, chance, id
        self.code, self.name = f"Tenant_{id}", f"{NAMES[id % len(NAMES)]} {id}"
        self.shares = ""
        """What it has in common with the tenant before, who gets it."""
        if id % 50 == 42:
            self.shares, self.code = "code", f"TENANT_{id - 1}"
        if (
            id % 50 == 43
        ):  # and the index leads to another tenant, so that this one is not in the way
            self.name = f"{NAMES[(id - 1) % len(NAMES)]} {id - 1}"
        if id % 50 == 45:
            self.shares, self.name = "name", f"{NAMES[(id - 1) % len(NAMES)]} {id - 1}"

    def make(self) -> None:
        steps = (self.meta, self.domain, self.databases, self.ftp, self.storage, self.former)
        for step in steps:
            step()

    def part(self, rest: str, path: str, written: object, expected: object) -> None:
        self.store.put(self.store.tenant_key(self.id, rest), written)
        self.store.expect(self.id, path, expected)

    def index(self, folder: str, name: str, value: Fields, *, stays: str | None = None) -> None:
        self.store.put(f"{self.store.namespace}//{folder}/{name}", value, stays=stays)

    def meta(self) -> None:
        id, broken = self.id, self.id % 50 == 7
        meta: Fields = {
            "code": self.code,
            "name": self.name,
            "status": self.chance.choice(("active", "inactive", "suspended")),
            "billingPlan": "enterprise",
        }
        if id % 3 == 0:
            meta["id"] = id + 1000  # the key determines the id
        if id % 5 == 0:
            meta["ours"] = {"since": 2019, "tags": ["a", None]}
        if broken:
            self.store.put(self.store.tenant_key(id, "meta"), b'{"id": ', stays="unreadable")
        elif self.shares:
            self.store.put(self.store.tenant_key(id, "meta"), meta, stays="taken")
            return
        else:
            self.part("meta", "meta", meta, {**meta, "id": id})
        fields = {"id": id, "code": self.code}
        stays = "orphan" if broken else None
        self.index("tenants/by-code", self.code, {**fields, "name": self.name}, stays=stays)
        named = self.name if id % 2 else urllib.parse.quote(self.name, safe="$&+:=@")
        self.index("tenants/by-name", named, {**fields, "primaryDomain": ""}, stays=stays)

    def domain(self) -> None:
        id = self.id
        primary, internal = f"T{id}.example.com", f"t{id}.internal"
        aliases = [f"www.t{id}.example.com", f"t{id}.示例.com".replace("示例", "xn--fsqu00a")]
        fields = {"tenantId": id, "code": self.code, "hostType": "frontend"}
        if id % 50 == 46:  # the same host twice, claimed by the previous tenant
            for rest, value in {
                "primary": f"t{id - 1}.internal".encode(),
                "aliases": [f"free{id}.example.com", f"T{id - 1}.internal"],
            }.items():
                self.store.put(self.store.tenant_key(id, f"domain/{rest}"), value, stays="taken")
        elif id % 9:
            quoted = encoded(primary) if id % 2 else primary.encode()
            self.part("domain/primary", "domain/primary", quoted, primary)
            self.index("hosts", primary.lower(), fields)
        if id % 4 and id % 50 not in (11, 12, 13, 46):
            self.part("domain/aliases", "domain/aliases", aliases, aliases)
            for alias in aliases:
                self.index("hosts", alias, fields)
        trouble = {
            11: (b"[", "unreadable"),
            12: (["good.example.com", "not a host!"], "refused"),
            13: ([f"www.t{id - 8}.example.com"], "taken"),  # claimed by a previous tenant
        }
        if id % 50 in trouble:
            value, verdict = trouble[id % 50]
            self.store.put(self.store.tenant_key(id, "domain/aliases"), value, stays=verdict)
        if id % 3 == 0 or id % 50 == 45:
            self.part("domain/internal", "domain/internal", internal.encode(), internal)
            self.index("hosts", internal, {**fields, "hostType": "internal"})

    def databases(self) -> None:
        id = self.id
        services = self.chance.sample(SERVICES, self.chance.randint(0, 4))
        for service in [*services, *(["meta"] if id % 25 == 3 else [])]:
            value: Fields = {
                "tenantId": id,
                "driver": "mysql",
                "host": f"mysql-{service}",
                "port": 3306,
                "database": f"tenant_{id}_{service}",
                "username": f"tenant_{id}",
                "password": f"secret {id}",
                "sslMode": "disable",
                "maxOpenConns": 100,
                "enabled": self.chance.random() < 0.9,
            }
            if id % 2:
                value["serviceCode"] = service
            self.database(service, value, {**value, "serviceCode": service})
        if id % 50 == 17:
            self.database("broken", b"{not json", "unreadable")
        if id % 50 == 18:
            self.database("Not Kebab", {"driver": "mysql"}, "refused")

    def database(self, service: str, value: object, expected: object) -> None:
        root = f"{self.store.namespace}//jxt/config/tenants/{self.id}"
        key = f"{root}/services/{service}/database"
        if isinstance(expected, str):
            self.store.put(key, value, stays=expected)
        else:
            self.store.put(key, value)
            self.store.expect(self.id, f"database/{service}", expected)

    def user(self, name: str) -> Fields:
        return {
            "username": name,
            "passwordHash": "$2a$10$abcdefghijklmnopqrstuv",
            "description": "默认FTP配置",
            "status": self.chance.choice(("active", "", "inactive")),
            "homeDirectory": f"/tenants/{self.id}",
            "writePermission": True,
        }

    def ftp(self) -> None:
        id, key = self.id, self.store.tenant_key(self.id, "ftp")
        if id % 50 == 21:
            self.store.put(key, b'{"ftpConfigs": [', stays="unreadable")
            return
        if id % 50 == 48:  # the first user belongs to the previous tenant
            taken, own = self.user(f"shared{id - 1}"), self.user(f"own{id}")
            self.store.put(key, [taken, own], stays="taken")
            self.store.expect(id, f"ftp/own{id}", {**own, "tenantId": id})
            return
        names = [f"t{id}_{number}.ftp-user" for number in range(self.chance.randint(0, 3))]
        if id == 2:
            names.append("meta")
        if id % 50 == 47:
            names.append(f"shared{id}")
        users = [self.user(name) for name in names]
        nameless = id % 50 == 22
        bad: list[Fields] = [{"description": "nobody"}] if nameless else []
        form = id % 4
        if form == 0 and not nameless and not names:
            return
        value: object = [*users, *bad] if form == 1 else {"ftpConfigs": [*users, *bad]}
        if form == 2 and len(users) == 1 and not bad:
            value = users[0]
        self.store.put(key, value, stays="refused" if nameless else None)
        for user in users:
            path, fields = f"ftp/{user['username']}", {"code": self.code, "name": self.name}
            self.store.expect(id, path, {**user, "tenantId": id})
            stays = "index" if nameless else None
            self.index("ftp-users", user["username"], {"tenantId": id, **fields}, stays=stays)

    def storage(self) -> None:
        id = self.id
        if id % 50 == 31:
            key = self.store.tenant_key(id, "storage")
            self.store.put(key, b"[1, 2]", stays="unreadable")
        elif id % 3 == 0:
            new: Fields = {"uploadQuotaGb": 1000, "maxFileSizeMb": 2048, "maxConcurrentUploads": 20}
            self.part("storage", "storage", new, {**new, "tenantId": id})
        elif id % 3 == 1:
            old: Fields = {"quotaBytes": (id + 1) * 2**29, "maxFileSizeBytes": 2**31}
            gb = (id + 1) / 2
            expected = {"uploadQuotaGb": int(gb) if gb.is_integer() else gb, "maxFileSizeMb": 2048}
            self.part("storage", "storage", old, {**expected, "tenantId": id})

    def former(self) -> None:
        """The keys of the previous generation."""
        id, root = self.id, f"{self.store.namespace}/tenants/{self.id}"
        if id % 7 == 0:
            value: Fields = {"driver": "postgres", "database": f"old_{id}", "ours": 1}
            service = "default"
            if id % 2:
                value["serviceCode"] = service = self.chance.choice(SERVICES)
            self.store.put(f"{root}/database", value)
            if f"database/{service}" not in self.store.expected.get(id, {}):
                expected = {**value, "tenantId": id, "serviceCode": service}
                self.store.expect(id, f"database/{service}", expected)
        if id % 11 == 0 and id % 50 != 21:
            user = self.user(f"former{id}")
            self.store.put(f"{root}/ftp", user)
            self.store.expect(id, f"ftp/former{id}", {**user, "tenantId": id})
        elif id % 50 == 37:
            self.store.put(f"{root}/ftp", b"\xff\xfe", stays="unreadable")


def _make_common(store: OldStore) -> None:
    root = f"{store.namespace}//"
    for path, value in {
        "common/resolver": {"id": 1, "httpType": "host", "httpHostMode": "code"},
        "common/storage-directory": {"directory": "tenants"},
        "platform/configs/theme": {"colour": "青", "deep": {"a": [1, 2.5, None]}},
        "platform/configs/meta": "just text",
        "platform/configs/a/b": [1, 2, 3],
    }.items():
        store.put(f"{root}{path}", value)
        store.expect(0, path, value)
    store.put(f"{root}_health/sentinel", {"updatedAt": "2026-02-03T00:00:00Z"})
    store.put(f"{root}platform/configs/broken", b"{", stays="unreadable")


def _make_trouble(store: OldStore) -> None:
    """Indexes that lead nowhere, and keys of other programs."""
    namespace = store.namespace
    root = f"{namespace}//"
    ghost = {"tenantId": 999_999_999, "code": "ghost", "hostType": "frontend"}
    store.put(f"{root}hosts/ghost.example.com", ghost, stays="orphan")
    store.put(f"{root}tenants/by-code/ghost", {"id": 999_999_999}, stays="orphan")
    store.put(f"{root}tenants/by-name/ghost/of a name", {"id": 999_999_999}, stays="orphan")
    store.put(f"{root}ftp-users/meta2", b"{broken", stays="orphan")
    for foreign in (
        *("tenants/1/metadata", "tenants/x/meta", "tenants/007/meta", "tenants/1/domain/other"),
        *("services/1", "jxt/config/tenants/1/services//database", "/tenants/1/meta"),
    ):
        store.put(f"{root}{foreign}", b"foreign", stays="foreign")
    for elsewhere in (
        *(f"{namespace}/other/1", f"{namespace}x//tenants/1/meta", f"{namespace}-/x", "zzz"),
        *(f"{namespace}/tenants/1/foreign", "/registry/default/svc/info", f"{namespace}"),
    ):
        store.put(elsewhere, b"elsewhere", stays="")


def verdicts(store: OldStore, steps: Iterable[tuple[str, str]], *, copied: bool) -> None:
    """Assert that all remaining keys were reported with the right verdict. Before a copy, a list
    with valid and invalid users counts as missing."""
    reported = dict(steps)
    for key, verdict in store.stays.items():
        actual = reported.get(key, "")
        mixed = actual == "missing" and verdict in ("refused", "taken") and key.endswith("/ftp")
        assert actual == verdict or (mixed and not copied), key
