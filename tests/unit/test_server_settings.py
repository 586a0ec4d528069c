"""The settings of `mooring serve`: flags override a file, and everything is validated."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.errors import InvalidRequest
from mooring.server.settings import ServerSettings, load


def test_flags_win_over_the_file(tmp_path: Path):
    (tmp_path / "file").write_text("store: memory://\nhttp: 127.0.0.1:1\netcd: 127.0.0.1:2\n")
    settings = load(tmp_path / "file", http="127.0.0.1:3", etcd="")
    assert (settings.http, settings.etcd) == ("127.0.0.1:3", "127.0.0.1:2")


def test_off_without_quotes_is_off(tmp_path: Path):
    (tmp_path / "file").write_text("store: memory://\nhttp: off\netcd: off\n")
    settings = load(tmp_path / "file")
    assert (settings.http, settings.etcd) == ("off", "off")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"http: \xff\xfe", "UTF-8"),
        (b"1: 2", "unknown setting 1"),
        (b"{[1]: 2}", "not valid YAML"),
        (b"a: b: c", "not valid YAML"),
        (b"http: 2020-99-99", "not valid YAML|expected an address"),
        (b"[1, 2]", "must contain settings"),
        (b"http: null", r"http"),
        (b"users: {a: 123}", r"users"),
        (b"users: {1: x}", r"users"),
        (b"tls: {cert: a}", "key"),
        (b"store: memory://\nhttp: 127.0.0.1:\xc2\xb2", "expected an address"),
        (b"store: nonsense", "not a store URL"),
        (b"store: memory://?namespace=/a", "--etcd off"),
        (b"store: sqlite:///x?namespace=/a\netcd: 127.0.0.1:0", "whole store"),
        (b"store: memory://\nregistry: nonsense", "not a store URL"),
        (b"store: redis://h\netcd: 127.0.0.1:0", "no keys for etcd's API"),
        (b"store: redis://h\nregistry: redis://h", "contains only a registry"),
        (b"cleanup: sometimes", r"cleanup"),
        (b"registry: {cleanup: {intervall: 7s}}", r"unknown setting registry\.cleanup\.intervall"),
        (b"registry: {url: 7}", r"registry"),
        (b"registry_settings: {}", "unknown setting 'registry_settings'"),
        (b"store: memory://\nhosts: ['https://mooring.lan']", "not a valid host name"),
        (b"store: memory://\nhosts: ['mooring.lan:80']", "not a valid host name"),
        (b"store: memory://\nhosts: mooring.lan", r"hosts"),
        (b"store: memory://\nrates: {reads: -1}", r"rates\.reads"),
        (b"store: memory://\nrates: {bodies: 1}", "bodies"),
        (b"store: memory://\nquota: 5 pages", "the quota 5 pages"),
        (
            b"store: memory://\nquota: -5",
            "the quota -5 is invalid: it must be a positive number of bytes",
        ),
        (
            b"store: memory://\nquota: 0",
            "the quota 0 is invalid: it must be a positive number of bytes",
        ),
        (b"store: memory://\nquota: true", "quota"),
        (b"store: etcd://127.0.0.1\nquota: 1GiB", "not an embedded store"),
        (b"store: memory://\nconnections: {per_address: -1}", r"connections\.per_address"),
        (b"store: memory://\nconnections: {exempt: [proxy]}", r"connections\.exempt: proxy"),
        (b"store: memory://\nconsole: sometimes", r"console"),
    ],
)
def test_an_invalid_setting_is_explained(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        load(tmp_path / "file")


@pytest.mark.parametrize("quota", ["1000000", "'1000000'"])
def test_a_quota_can_be_a_number(tmp_path: Path, quota: str):
    (tmp_path / "file").write_text(f"store: memory://\nquota: {quota}\n")
    assert load(tmp_path / "file").url().option("quota", 0) == 1_000_000


def test_a_namespace_is_allowed_without_the_etcd_api(tmp_path: Path):
    (tmp_path / "file").write_text("store: memory://?namespace=/a\netcd: off\n")
    assert load(tmp_path / "file").url().options["namespace"] == "/a"


@pytest.mark.parametrize(
    ("content", "etcd", "cleanup"),
    [
        ("store: memory://", "127.0.0.1:2379", True),
        ("store: memory://\nregistry: redis://h", "127.0.0.1:2379", True),
        ("store: memory://\nregistry: redis://h\ncleanup: off", "127.0.0.1:2379", False),
        ("store: memory://\nregistry: redis://h\ncleanup: 'off'", "127.0.0.1:2379", False),
        ("store: memory://\nregistry: memory://other", "127.0.0.1:2379", True),
        ("store: redis+sentinel://h/main", "off", True),
        ("store: etcd://h\nregistry: redis://h", "off", True),
    ],
)
def test_cleanup_is_on_unless_it_is_disabled(
    tmp_path: Path, content: str, etcd: str, cleanup: bool
):
    (tmp_path / "file").write_text(content)
    settings = load(tmp_path / "file")
    assert (settings.etcd, settings.cleanup) == (etcd, cleanup)


@pytest.mark.parametrize(
    ("content", "flag", "url"),
    [
        ("registry: {url: 'redis://h', cleanup: {interval: 7s}}", "", "redis://h"),
        ("registry: {cleanup: {interval: 7s}}", "redis://h", "redis://h"),
        ("registry: {url: 'redis://h', cleanup: {interval: 7s}}", "redis://i", "redis://i"),
    ],
)
def test_the_registry_can_be_a_section_of_its_settings(
    tmp_path: Path, content: str, flag: str, url: str
):
    (tmp_path / "file").write_text(f"store: memory://\n{content}\n")
    settings = load(tmp_path / "file", registry=flag)
    assert (settings.registry, settings.cleanup) == (url, True)
    assert settings.registry_settings is not None
    assert settings.registry_settings.cleanup.interval == 7


def test_no_password_is_shown():
    settings = load(None, store="etcd://a:hunter2@h", registry="redis://b:hunter3@h")
    assert "hunter" not in repr(settings)


@pytest.mark.parametrize("name", ["mia@home", "100%41", "what?", "#1", "a b", "服务"])
def test_the_data_folder_can_have_any_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / name))
    assert ServerSettings().url().file == tmp_path / name / "mooring" / "store"


def test_the_store_is_in_the_configured_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load(None, data="~/mooring")
    assert settings.folder() == tmp_path / "mooring"
    assert settings.url().file == tmp_path / "mooring" / "store"


@pytest.mark.parametrize(("setting", "on"), [("on", True), ("off", False), ("'off'", False)])
def test_the_console_is_on_by_default(tmp_path: Path, setting: str, on: bool):
    (tmp_path / "file").write_text(f"store: memory://\nconsole: {setting}\n")
    assert load(tmp_path / "file").console is on


def test_the_error_for_a_user_without_a_home_names_the_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", "~nobody-of-this-name")
    with pytest.raises(InvalidRequest, match="--store"):
        ServerSettings().url()
