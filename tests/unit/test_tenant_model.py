"""The parts of a tenant, parsed leniently."""

from __future__ import annotations

import json

import pytest

from mooring.errors import InvalidRequest
from mooring.model import JSON
from mooring.tenants.keys import kind_of
from mooring.tenants.model import (
    MAX_DEPTH,
    Database,
    Domain,
    Ftp,
    Meta,
    Part,
    Resolver,
    Storage,
    UnreadableValue,
    decode,
    encode,
    parse_part,
    to_record,
)
from mooring.tenants.secrets import Keyring, Secret

RING = Keyring([b"k" * 32])


def read(path: str, raw: bytes | JSON, tenant: int = 1) -> Part:
    if not isinstance(raw, bytes):
        raw = json.dumps(raw).encode()
    return parse_part(tenant, path, decode(path, raw), RING)


def test_a_meta_is_parsed_as_documented():
    raw: JSON = {
        "id": 1,
        "code": "default",
        "name": "默认租户",
        "status": "active",
        "billingPlan": "enterprise",
    }
    meta = read("meta", raw)
    assert meta == Meta(id=1, code="default", name="默认租户", billing_plan="enterprise")
    assert isinstance(meta, Meta)
    assert meta.active


@pytest.mark.parametrize(
    ("status", "active"),
    [("active", True), ("inactive", False), ("suspended", False), ("gone", False), (None, True)],
)
def test_any_other_status_means_inactive(status: str | None, active: bool):
    meta = read("meta", {"status": status})
    assert isinstance(meta, Meta)
    assert meta.active is active


def test_a_database_is_parsed_as_documented():
    raw: JSON = {
        "tenantId": 1,
        "serviceCode": "evidence-command",
        "driver": "mysql",
        "host": "mysql-command",
        "port": 3306,
        "database": "tenant_default_evidence_command",
        "username": "tenant_default_cmd",
        "sslMode": "disable",
        "maxOpenConns": 100,
        "maxIdleConns": 20,
        "enabled": True,
    }
    assert read("database/evidence-command", raw) == Database(
        tenant_id=1,
        service_code="evidence-command",
        driver="mysql",
        host="mysql-command",
        port=3306,
        database="tenant_default_evidence_command",
        username="tenant_default_cmd",
        ssl_mode="disable",
        max_open_conns=100,
        max_idle_conns=20,
        enabled=True,
    )


def test_an_ftp_user_and_a_storage_are_parsed_as_documented():
    ftp = read(
        "ftp/default_ftp",
        {
            "tenantId": 1,
            "username": "default_ftp",
            "passwordHash": "$2a$10$...",
            "description": "默认FTP配置",
            "status": "active",
            "homeDirectory": "/tenants/1",
            "writePermission": True,
        },
    )
    assert isinstance(ftp, Ftp)
    assert (ftp.username, ftp.home_directory, ftp.write_permission) == (
        "default_ftp",
        "/tenants/1",
        True,
    )
    assert ftp.password_hash == Secret("$2a$10$...")
    storage = read(
        "storage",
        {"tenantId": 1, "uploadQuotaGb": 1000, "maxFileSizeMb": 2048, "maxConcurrentUploads": 20},
    )
    assert storage == Storage(
        tenant_id=1, upload_quota_gb=1000, max_file_size_mb=2048, max_concurrent_uploads=20
    )


@pytest.mark.parametrize(
    ("status", "active"), [("", True), ("active", True), (None, True), ("disabled", False)]
)
def test_an_ftp_user_without_a_status_is_active(status: str | None, active: bool):
    ftp = read("ftp/bob", {"status": status})
    assert isinstance(ftp, Ftp)
    assert ftp.active is active


@pytest.mark.parametrize("raw", [b"example.com", b'"example.com"', b" example.com\n"])
@pytest.mark.parametrize("path", ["domain/primary", "domain/internal"])
def test_a_domain_is_plain_text_or_a_json_string(path: str, raw: bytes):
    assert read(path, raw) == "example.com"


def test_aliases_are_a_list():
    assert read("domain/aliases", ["a.example.com", "b.example.com"]) == (
        "a.example.com",
        "b.example.com",
    )
    hosts = Domain("Example.com", ("WWW.example.com", "example.com"), "in.ternal").hosts
    assert hosts == ("example.com", "www.example.com", "in.ternal")


def test_storage_in_bytes_of_the_older_generation_is_converted():
    storage = read("storage", {"quotaBytes": 5 * 2**30, "maxFileSizeBytes": 3 * 2**19})
    assert storage == Storage(tenant_id=1, upload_quota_gb=5, max_file_size_mb=1.5)
    both = read("storage", {"quotaBytes": 5 * 2**30, "uploadQuotaGb": 7})
    assert both == Storage(tenant_id=1, upload_quota_gb=7)
    newer_is_null = read("storage", {"quotaBytes": 2**30, "uploadQuotaGb": None})
    assert newer_is_null == Storage(tenant_id=1, upload_quota_gb=1)


def test_a_huge_number_of_bytes_is_at_worst_unreadable():
    with pytest.raises(UnreadableValue):
        read("storage", {"quotaBytes": 10**400})


@pytest.mark.parametrize("path", ["meta", "database/a", "ftp/bob", "storage"])
def test_null_equals_a_missing_field(path: str):
    names = ["id", "code", "status", "port", "enabled", "password", "passwordHash", "quotaBytes"]
    assert read(path, dict.fromkeys(names)) == read(path, {})


def test_unknown_fields_are_kept():
    meta = read("meta", {"code": "a", "region": "eu", "extra": {"deep": [1]}})
    assert isinstance(meta, Meta)
    assert meta.extra == {"region": "eu", "extra": {"deep": [1]}}


def test_the_key_overrides_the_value():
    assert read("meta", {"id": 7}, tenant=1) == Meta(id=1)
    database = read("database/a", {"tenantId": 7, "serviceCode": "b"})
    assert database == Database(tenant_id=1, service_code="a")
    assert read("ftp/bob", {"tenantId": 7, "username": "al"}) == Ftp(tenant_id=1, username="bob")
    assert read("storage", {"tenantId": 7}) == Storage(tenant_id=1)
    assert read("meta", {"id": "no number"}) == Meta(id=1)


def test_a_database_is_enabled_by_default():
    cases: list[tuple[JSON, bool]] = [
        ({}, True),
        ({"enabled": None}, True),
        ({"enabled": False}, False),
    ]
    for raw, enabled in cases:
        database = read("database/a", raw)
        assert isinstance(database, Database)
        assert database.enabled is enabled


def test_numbers_and_flags_can_be_strings():
    database = read("database/a", {"port": "3306", "enabled": "false"})
    assert database == Database(tenant_id=1, service_code="a", port=3306, enabled=False)


def test_a_password_can_be_sealed_or_plain():
    sealed, of = RING.seal("hunter2")
    written: list[JSON] = [
        {"passwordEncrypted": sealed, "passwordKeyId": of},
        {"passwordEncrypted": sealed},
        {"password": "hunter2"},
        {"passwordEncrypted": sealed, "password": "older"},
        {"passwordEncrypted": "", "password": "hunter2"},
    ]
    for raw in written:
        database = read("database/a", raw)
        assert isinstance(database, Database)
        assert database.password is not None
        assert database.password.reveal() == "hunter2"
        assert database.extra == {}


def test_a_repr_never_shows_a_secret():
    for part in (
        read("database/a", {"password": "hunter2", "apiToken": "hunter2"}),
        read("database/a", {"passwordEncrypted": RING.seal("hunter2")[0]}),
        read("ftp/bob", {"passwordHash": "hunter2", "smtp": {"password": "hunter2"}}),
        read("meta", {"secret": "hunter2", "list": [{"token": "hunter2"}]}),
        to_record(Resolver, {"clientSecret": "hunter2"}),
    ):
        assert "hunter2" not in repr(part)
        assert "hunter2" not in str(part)


@pytest.mark.parametrize("path", ["meta", "database/a", "ftp/bob", "storage", "domain/aliases"])
@pytest.mark.parametrize("raw", [b"", b"{", b"hunter2", b"\xff", b"[1", b"[" * 100_000, b"NaN"])
def test_broken_json_is_unreadable_and_not_shown(path: str, raw: bytes):
    with pytest.raises(UnreadableValue) as error:
        decode(path, raw)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("path", ["meta", "database/a", "platform/configs/a"])
def test_deeply_nested_json_is_unreadable(path: str, opening: bytes, closing: bytes):
    def nested(depth: int) -> bytes:
        return b'{"x":%s1%s}' % (opening * depth, closing * depth)

    decode(path, nested(MAX_DEPTH - 1))
    decode(path, b'{"x":[%s]}' % b",".join([b"[]"] * 10_000))
    for depth in (MAX_DEPTH, 900, 5_000):
        with pytest.raises(UnreadableValue):
            decode(path, nested(depth))


@pytest.mark.parametrize("path", ["domain/primary", "domain/internal", "domain/aliases"])
def test_a_null_domain_is_no_domain(path: str):
    assert not decode(path, b" null\n")


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("meta", b"[]"),
        ("storage", b'"text"'),
        ("domain/aliases", b'"a.example.com"'),
        ("domain/aliases", b"[1]"),
        ("domain/primary", b'"unfinished'),
        ("domain/primary", b"\xff\xfe"),
    ],
)
def test_a_value_of_the_wrong_type_is_unreadable(path: str, raw: bytes):
    with pytest.raises(UnreadableValue):
        decode(path, raw)


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("database/a", {"port": "hunter2"}),
        ("ftp/bob", {"passwordHash": 5}),
        ("ftp/bob", {"writePermission": "hunter2"}),
        ("meta", {"code": ["hunter2"]}),
    ],
)
def test_an_invalid_field_is_unreadable_and_not_shown(path: str, raw: JSON):
    with pytest.raises(UnreadableValue) as error:
        read(path, raw)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("domain/primary", "example.com"),
        ("domain/aliases", ["a.example.com"]),
        ("meta", {"code": "a", "name": "默认"}),
    ],
)
def test_a_value_is_read_as_it_was_written(path: str, value: JSON):
    assert decode(path, encode(path, value)) == value
    assert kind_of(path) in ("domain", "meta")


@pytest.mark.parametrize(
    ("path", "value"),
    [("domain/primary", 5), ("meta", {"name": "\ud800"}), ("meta", {"x": object()})],
)
def test_an_invalid_value_is_refused_before_it_is_written(path: str, value: JSON):
    with pytest.raises(InvalidRequest):
        encode(path, value)
