"""Keys of tenants, built and parsed."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.tenants.keys import (
    MAX_ID,
    CommonPart,
    IndexEntry,
    IndexKind,
    PartOf,
    TenantKeys,
    is_path,
    joined,
    path_escape,
)
from mooring.tenants.parts import normalized_key

KEYS = TenantKeys()

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
segments = names.filter(lambda name: "/" not in name)
paths = st.one_of(
    st.sampled_from(["meta", "storage", "domain/primary", "domain/aliases", "domain/internal"]),
    segments.map(lambda name: f"database/{name}"),
    segments.map(lambda name: f"ftp/{name}"),
)
ids = st.integers(1, MAX_ID)
kinds: st.SearchStrategy[IndexKind] = st.sampled_from(["by-code", "by-name", "ftp-user", "host"])


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("meta", "jxt/tenants/1/meta"),
        ("domain/primary", "jxt/tenants/1/domain/primary"),
        ("domain/aliases", "jxt/tenants/1/domain/aliases"),
        ("domain/internal", "jxt/tenants/1/domain/internal"),
        ("database/evidence-command", "jxt/tenants/1/database/evidence-command"),
        ("ftp/default_ftp", "jxt/tenants/1/ftp/default_ftp"),
        ("storage", "jxt/tenants/1/storage"),
    ],
)
def test_the_keys_of_parts(path: str, key: str):
    assert KEYS.part(1, path) == key.encode()
    assert KEYS.understand(key.encode()) == PartOf(1, path)
    assert key.encode() in KEYS.parts(1)
    assert key.encode() in KEYS.all


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("by-code", "default", "jxt/tenants/_index/by-code/default"),
        ("by-code", "DeFault", "jxt/tenants/_index/by-code/default"),
        (
            "by-name",
            "默认租户",
            "jxt/tenants/_index/by-name/%E9%BB%98%E8%AE%A4%E7%A7%9F%E6%88%B7",
        ),
        ("by-name", "A/B c", "jxt/tenants/_index/by-name/A%2FB%20c"),
        ("ftp-user", "Default_ftp", "jxt/tenants/_index/ftp-user/Default_ftp"),
        ("host", "API.example.com", "jxt/tenants/_index/host/api.example.com"),
    ],
)
def test_the_keys_of_indexes(kind: IndexKind, name: str, key: str):
    assert KEYS.index(kind, name) == key.encode()
    assert KEYS.understand(key.encode()) == IndexEntry(kind, key.rpartition("/")[2])
    assert key.encode() in KEYS.indexes
    assert key.encode() not in KEYS.all


@pytest.mark.parametrize(
    "path", ["common/resolver", "common/storage-directory", "platform/configs/mail"]
)
def test_the_keys_of_common_parts(path: str):
    assert KEYS.common_part(path) == f"jxt/{path}".encode()
    assert KEYS.understand(f"jxt/{path}".encode()) == CommonPart(path)


def test_the_keys_of_the_sentinel_and_the_history():
    assert KEYS.sentinel == b"jxt/_health/sentinel"
    assert KEYS.understand(KEYS.sentinel) == CommonPart("_health/sentinel")
    assert KEYS.history(1, 7) == b"jxt/_history/1/000000000007"
    assert KEYS.history_number(KEYS.history(1, 7)) == 7
    assert KEYS.history_number(KEYS.history_head(1)) == 0
    assert KEYS.history_number(b"jxt/_history/1/more/000000000007") == 0
    assert KEYS.history_number(b"jxt/_history/1/7") == 0
    assert KEYS.understand(KEYS.history(1, 7)) is None
    assert KEYS.tenant(KEYS.history(12, 7)) == KEYS.tenant(KEYS.part(12, "meta")) == 12
    assert KEYS.tenant(b"jxt/tenants/_index/by-code/12") == 0


@pytest.mark.parametrize("namespace", ["jxt", "/jxt", "jxt/", "//jxt//", "a/b", "//a///b/"])
@pytest.mark.parametrize("path", ["ftp/bob", "/ftp/bob", "ftp//bob", "//ftp///bob//"])
def test_no_key_has_a_double_slash(namespace: str, path: str):
    keys = TenantKeys(namespace)
    made = [
        keys.part(1, path),
        keys.common_part(f"/platform//configs/{path}/"),
        keys.sentinel,
        keys.history(1, 1),
        keys.index("by-name", "a//b"),
        keys.index("by-code", "a//b"),
        keys.index("host", "//a"),
        keys.index("ftp-user", "a//"),
    ]
    for key in made:
        assert b"//" not in key
        assert not key.startswith(b"/")
        assert not key.endswith(b"/")
    assert keys.understand(keys.part(1, path)) == PartOf(1, "ftp/bob")


@pytest.mark.parametrize("namespace", ["", "/", "///"])
def test_a_namespace_is_not_empty(namespace: str):
    with pytest.raises(InvalidRequest, match="namespace"):
        TenantKeys(namespace)


def test_the_environment_sets_the_namespace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "acme")
    assert TenantKeys().namespace == "acme"
    assert TenantKeys("other").namespace == "other"
    monkeypatch.setenv("MOORING_TENANTS_NAMESPACE", "")
    assert TenantKeys().namespace == "jxt"


@given(ids, paths)
def test_a_part_key_is_parsed_as_it_was_built(tenant: int, path: str):
    assert is_path(path)
    key = KEYS.part(tenant, path)
    assert KEYS.understand(key) == PartOf(tenant, path)
    assert key in KEYS.parts(tenant)
    assert key in KEYS.all
    assert KEYS.tenant(key) == tenant


@given(kinds, names)
def test_an_index_key_is_parsed_as_it_was_built(kind: IndexKind, name: str):
    key = KEYS.index(kind, name)
    index = KEYS.understand(key)
    assert isinstance(index, IndexEntry)
    assert index.kind == kind
    assert b"//" not in key
    assert f"jxt/tenants/_index/{kind}/{index.name}".encode() == key


@given(ids, ids)
def test_a_tenants_range_excludes_other_tenants(one: int, other: int):
    assert (KEYS.part(one, "meta") in KEYS.parts(other)) is (one == other)
    assert KEYS.part(10, "meta") not in KEYS.parts(1)
    assert KEYS.history(10, 1) not in KEYS.history_of(1)


@pytest.mark.parametrize("name", ["meta", "primary", "storage", "aliases", "_index", "database"])
def test_any_user_or_service_name_is_kept_in_its_key(name: str):
    assert KEYS.understand(KEYS.part(1, f"ftp/{name}")) == PartOf(1, f"ftp/{name}")
    assert KEYS.understand(KEYS.part(1, f"database/{name}")) == PartOf(1, f"database/{name}")


@pytest.mark.parametrize(
    "key",
    [
        b"jxt/tenants/1/database",
        b"jxt/tenants/1/ftp",
        b"jxt/tenants/1/ftp/",
        b"jxt/tenants/1/ftp/a/b",
        b"jxt/tenants/1/domain",
        b"jxt/tenants/1/domain/other",
        b"jxt/tenants/1/meta/",
        b"jxt/tenants/1",
        b"jxt/tenants/01/meta",
        b"jxt/tenants/0/meta",
        b"jxt/tenants/-1/meta",
        b"jxt/tenants/9223372036854775808/meta",
        "jxt/tenants/١/meta".encode(),
        b"jxt/tenants//1/meta",
        b"jxt//tenants/1/meta",
        b"jxt//jxt/config/tenants/1/services/a/database",
        b"jxt//ftp-users/bob",
        b"jxt/tenants/by-code/default",
        b"jxt/tenants/_index/by-code/",
        b"jxt/tenants/_index/other/x",
        b"jxt/common/other",
        b"jxt/platform/configs/",
        b"jxt/platform/configs//x",
        b"common/resolver",
        b"other/tenants/1/meta",
        b"jxt/tenants/1/ftp/\xff",
    ],
)
def test_foreign_and_older_keys_are_not_parsed(key: bytes):
    assert KEYS.understand(key) is None


@pytest.mark.parametrize("tenant", [0, -1, MAX_ID + 1, True, "1", 1.0, None])
def test_an_id_is_a_positive_integer(tenant: object):
    with pytest.raises(InvalidRequest, match="positive integer"):
        KEYS.part(tenant, "meta")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["common/other", "meta", "", "platform/configs", "platform/configs/\ud800"]
)
def test_only_known_parts_concern_all_tenants(path: str):
    with pytest.raises(InvalidRequest):
        KEYS.common_part(path)


def test_keys_that_others_write_in_capitals_are_in_the_range_of_capitals():
    for kind, name in (("by-code", "ACME"), ("host", "Shop.example.com"), ("host", "Z/x")):
        written = KEYS.as_written(kind, name)  # type: ignore[arg-type]
        assert written in KEYS.capitals(kind)  # type: ignore[arg-type]
        assert KEYS.index(kind, name) not in KEYS.capitals(kind)  # type: ignore[arg-type]
        assert normalized_key(KEYS, written) == normalized_key(KEYS, KEYS.index(kind, name))  # type: ignore[arg-type]
    assert KEYS.as_written("by-name", "x/ y") == b"jxt/tenants/_index/by-name/x/ y"
    bob = KEYS.index("ftp-user", "Bob")
    assert normalized_key(KEYS, bob) == bob == KEYS.as_written("ftp-user", "Bob")


def test_names_are_escaped_as_in_go():
    """Go's `shouldEscape` with `encodePathSegment`: of the reserved, `$ & + : = @` stay."""
    stays = string.ascii_letters + string.digits + "-_.~" + "$&+:=@"
    for code in range(128):
        letter = chr(code)
        assert path_escape(letter) == (letter if letter in stays else f"%{code:02X}")
    assert path_escape("é") == "%C3%A9"
    assert path_escape("😀") == "%F0%9F%98%80"


@given(st.lists(st.text("a/", max_size=5), max_size=4))
def test_joined_parts_have_one_slash_between_them(parts: list[str]):
    path = joined(*parts)
    assert "//" not in path
    assert path.strip("/") == path
    assert path.replace("/", "") == "".join(parts).replace("/", "")
