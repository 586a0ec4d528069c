"""A tenant in one file: parsing, editing, exporting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.errors import InvalidRequest
from mooring.masking import MASK
from mooring.model import JSON
from mooring.tenants import validation as rules
from mooring.tenants.document import Document, load, parse, read_all, to_document
from mooring.tenants.parts import Parts, UnreadablePart, diff_parts
from mooring.tenants.publish.merge import merged
from mooring.tenants.secrets import Keyring

RING = Keyring([b"k" * 32])

WHOLE = """
id: 1
meta: {code: default, name: 默认租户, billingPlan: enterprise}
domain: {primary: example.com, aliases: [www.example.com], internal: shop.internal}
database:
  evidence-query: {driver: mysql, host: mysql-query, port: 3306, database: tenant_query}
ftp:
  default_ftp: {passwordHash: $2a$10$..., homeDirectory: /tenants/1}
  meta: {}
storage: {uploadQuotaGb: 1000}
"""

PATHS = {
    "meta",
    "domain/primary",
    "domain/aliases",
    "domain/internal",
    "database/evidence-query",
    "ftp/default_ftp",
    "ftp/meta",
    "storage",
}


def read(text: str, *, of: str, as_json: bool = False) -> Document:
    [document] = read_all(text, of=of, as_json=as_json)
    return document


def refused(text: str, *, as_json: bool = False) -> str:
    with pytest.raises(InvalidRequest) as error:
        read(text, of="file", as_json=as_json)
    assert "hunter2" not in str(error.value)
    return str(error.value)


def test_yaml_and_json_are_equivalent(tmp_path: Path):
    one, other = tmp_path / "tenant.yaml", tmp_path / "tenant.json"
    one.write_text(WHOLE, encoding="utf-8")
    other.write_text("\ufeff" + json.dumps(yaml.safe_load(WHOLE)), encoding="utf-8")
    assert load(one) == load(other)
    assert load(one).applied({}, RING).keys() == PATHS


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(InvalidRequest, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidRequest, match=r"broken\.yaml"):
        load(broken)


def test_a_file_with_two_tenants_is_not_the_file_of_one(tmp_path: Path):
    file = tmp_path / "two.yaml"
    file.write_text("id: 1\n---\nid: 2")
    with pytest.raises(InvalidRequest, match=r"two\.yaml: it contains 2 documents: one is"):
        load(file)


def applied(text: str) -> set[str]:
    """The parts that remain of a complete tenant after this document was applied."""
    complete = parse(yaml.safe_load(WHOLE)).applied({}, RING)
    return set(read(text, of="file").applied(complete, RING))


def test_an_omitted_section_is_kept():
    assert applied("id: 1") == PATHS


@pytest.mark.parametrize("empty", ["", " {}", " null", " ~"])
@pytest.mark.parametrize("section", ["domain", "database", "ftp", "storage"])
def test_an_empty_section_is_removed(section: str, empty: str):
    left = {path for path in PATHS if not path.startswith(section)}
    assert applied(f"id: 1\n{section}:{empty}") == left


def test_a_section_replaces_all_its_parts():
    left = applied("id: 1\nftp: {bob: {}}\ndomain: {primary: a.example, aliases: [], internal: ''}")
    assert left == PATHS - {"ftp/default_ftp", "ftp/meta", "domain/aliases", "domain/internal"} | {
        "ftp/bob"
    }


def test_meta_cannot_be_removed():
    assert "meta cannot be removed" in refused("id: 1\nmeta: {}")
    assert "meta cannot be removed" in refused("id: 1\nmeta:")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a tenant's file must be a map"),
        ("[1, 2]", "a tenant's file must be a map"),
        ("meta: {code: a, name: b}", "id is missing"),
        ("id: '1'", "positive integer"),
        ("id: 0", "positive integer"),
        ("id: yes", "positive integer"),
        ("id: 1\nmetta: {}", "unknown field 'metta', did you mean 'meta'?"),
        ("id: 1\nftps: {}", "unknown field 'ftps', did you mean 'ftp'?"),
        ("id: 1\ndomain: {primry: a.example}", "domain has an unknown field 'primry', did you"),
        ("id: 1\ndomain: {primary: false}", "domain/primary must be text"),
        ("id: 1\ndomain: {aliases: 0}", "domain/aliases must be a list"),
        ("id: 1\ndomain: a.example", "domain must be a map"),
        ("id: 1\nftp: [bob]", "file: tenant 1: ftp must be a map"),
        ("id: 1\nftp: {12345: {}}", "ftp has a name that is not text: 12345 (put"),
        ("id: 1\nftp: {on: {}}", "not text: true (put it in quotes)"),
        ("id: 1\nftp: {a/b: {}}", "ftp/a/b is not a part of a tenant"),
        ("id: 1\nftp: {'': {}}", "ftp/ is not a part of a tenant"),
        ("id: 1\nftp: {bob: }", "ftp/bob must be a map of fields, not nothing"),
        ("id: 1\nmeta: {code: 123, name: x}", "meta.code must be text, not a number (put it in"),
        ("id: 1\nmeta: {code: x, name: no}", "meta.name must be text, not true or false"),
        (
            "id: 1\nmeta: {code: x, name: !!timestamp 2024-01-01}",
            "cannot be written as JSON: an object",
        ),
        ("id: 1\nstorage: {extra: {x: !!set {a, b}}}", "be written as JSON: an object"),
        ("id: 1\nstorage: {extra: {x: !!binary aGk=}}", "be written as JSON: an object"),
        ("id: 1\nstorage: {extra: {x: .nan}}", "extra.x must be a finite number"),
        ("id: 1\nstorage: {extra: {1: a}}", "extra has a name that is not text: 1 (put"),
        ("id: 1\nstorage: {? [a, b] : c}", "unhashable"),
        ("id: 1\nstorage: {uploadQuotaGb: .inf}", "uploadQuotaGb must be a finite number"),
        (f"id: 1\nstorage: {{uploadQuotaGb: 0x{'f' * 9000}}}", "too large"),
        (f"id: {'9' * 9000}", "too long"),
        ("id: 1\nstorage: !!python/object:os.system {}", "not YAML"),
        ("id: 1\nstorage: !!timestamp hunter2", "tag"),
        ("id: 1\nstorage: !!bool hunter2", "tag"),
        ("id: 1\nstorage: !!int hunter2", "tag"),
        (
            "id: 1\n---\nid: 2\nmetta: {}",
            "document 2: the document has an unknown field",
        ),
        ("id: 1\nstorage: \x00", "not YAML"),
        ("id: 1\ndatabase: {a: {password: 'hunter2}}", "not YAML"),
        ("id: 1\ndatabase:\n  a:\n    password: hunter2: x", "not YAML"),
        ("id: 1\ndatabase:\n\ta: hunter2", "not YAML"),
        ("id: 1\ndatabase: {a: {password: *hunter2}}", "not YAML"),
        ("id: 1\ndatabase: {a: {pasword: hunter2}}", "did you mean 'password'?"),
        ("id: 1\ndatabase: {a: {driver: x, database: x, password: ••••••}}", ""),
    ],
)
def test_the_error_for_an_invalid_document_shows_no_secret(text: str, problem: str):
    if not problem:
        document = read(text, of="file")
        with pytest.raises(InvalidRequest, match="password is masked"):
            document.applied({}, RING)
        return
    assert problem in refused(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id: 1\nid: 2", "duplicate name 'id'"),
        ("id: 1\nstorage:\n  extra: {a: 1}\n  extra: {a: 2}", "duplicate name 'extra', line 4"),
        ("id: 1\ndatabase: {a: {password: hunter2, password: hunter2}}", "name 'password'"),
    ],
)
def test_a_duplicate_key_is_refused(text: str, problem: str):
    assert problem in refused(text)


def test_a_duplicate_key_is_refused_in_json():
    assert "duplicate name 'id'" in refused('{"id": 1, "id": 2}', as_json=True)
    assert "not JSON" in refused('{"id": 1, "x": "hunter2', as_json=True)
    assert "too many" in refused("[" * 100_000, as_json=True)
    assert "too many" in refused("[" * 5_000)


@pytest.mark.parametrize(
    ("text", "as_json"),
    [
        ("id: 1\n---\nid: 2\nstorage: {uploadQuotaGb: 1}\n", False),
        ("---\nid: 1\n---\n# nothing\n---\nid: 2\nstorage: {uploadQuotaGb: 1}\n---\n", False),
        ('{"id": 1}\n{"id": 2, "storage": {"uploadQuotaGb": 1}}\n', False),
        ('{"id": 1}\n{"id": 2, "storage": {"uploadQuotaGb": 1}}\n', True),
        ('\n {"id": 1}\n\n\n{"id": 2,\n"storage": {"uploadQuotaGb": 1}}', True),
    ],
)
def test_a_file_can_contain_many_tenants(text: str, as_json: bool):
    documents = read_all(text, of="file", as_json=as_json)
    assert [document.tenant for document in documents] == [1, 2]
    assert documents[1].sections == {"storage": {"storage": {"uploadQuotaGb": 1}}}


def test_an_error_names_the_document_of_the_file():
    with pytest.raises(InvalidRequest, match="file, document 2: id is missing"):
        read_all('{"id": 1}\n{"storage": {}}\n', of="file")
    with pytest.raises(InvalidRequest, match=r"not JSON: .* line 2 column") as error:
        read_all('{"id": 1}\n{"id": 2, "ftp": {"a": {"passwordHash": "hunter2}}}', of="file")
    assert "hunter2" not in str(error.value)


def test_dates_and_times_are_text():
    document = read(
        "id: 1\nmeta: {code: a, name: 2024-01-01, billingPlan: 2024-01-01 10:00:00}", of=""
    )
    assert document.sections["meta"]["meta"] == {
        "code": "a",
        "name": "2024-01-01",
        "billingPlan": "2024-01-01 10:00:00",
    }


def test_anchors_and_merges_work():
    text = """
    id: 1
    database:
      a: &mysql {driver: mysql, host: db, database: a}
      b: {<<: *mysql, database: b}
      c: {<<: [*mysql, {port: 3306}], database: c}
    """
    databases = read(text, of="file").sections["database"]
    assert databases["database/b"] == {"driver": "mysql", "host": "db", "database": "b"}
    assert databases["database/c"] == {
        "driver": "mysql",
        "host": "db",
        "port": 3306,
        "database": "c",
    }


def test_a_nested_merge_is_no_duplicate_key():
    text = """
    id: 1
    storage: {extra: {a: &a {x: 1, y: 1}, b: &b {<<: *a, y: 2}, c: {<<: *b, y: 3}}}
    """
    storage = cast(Any, read(text, of="file").sections["storage"]["storage"])
    assert storage["extra"]["c"] == {"x": 1, "y": 3}


def test_a_yaml_bomb_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    body = "\n    ".join(lines)
    assert "too many nested values" in refused(f"id: 1\nstorage:\n  extra:\n    {body}")
    assert "too many nested values" in refused("id: 1\nstorage: &a {extra: {x: *a}}")
    maps = ["a0: &a0 {x0: 1, x1: 1, x2: 1}"]
    maps += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    body = "\n    ".join(maps)
    assert "too large" in refused(f"id: 1\nstorage:\n  extra:\n    {body}")


def test_a_large_map_is_accepted():
    users = "".join(f"  user{n}: {{}}\n" for n in range(10_001))
    assert len(read(f"id: 1\nftp:\n{users}", of="x").sections["ftp"]) == 10_001


@pytest.mark.parametrize("id", ["010", "1:30", "0b11", "08", "1:30.5"])
def test_numbers_are_decimal(id: str):
    assert "must be a positive integer" in refused(f"id: {id}")
    database = f"{{driver: x, database: x, password: {id}}}"
    document = read(f"id: 1_0\ndatabase: {{a: {database}}}", of="x")
    assert document.tenant == 10
    assert document.sections["database"]["database/a"] == {
        "driver": "x",
        "database": "x",
        "password": id,
    }


def test_unknown_fields_are_below_extra():
    document = read("id: 1\nstorage: {extra: {region: eu}}", of="file")
    assert document.applied({}, RING) == {"storage": {"tenantId": 1, "region": "eu"}}
    assert "unknown field 'region'" in refused("id: 1\nstorage: {region: eu}")


def test_omitted_secrets_are_kept():
    first = read(
        "id: 1\nftp: {bob: {passwordHash: h}}\n"
        "database: {a: {driver: x, database: x, password: pw, extra: {apiToken: t}}}",
        of="file",
    ).applied({}, RING)
    again = read(
        "id: 1\nftp: {bob: {}}\ndatabase: {a: {driver: x, database: y}}", of="file"
    ).applied(first, RING)
    assert again["ftp/bob"] == first["ftp/bob"]
    assert diff_parts(first, again)[0].path == "database/a"
    before, after = (cast(dict[str, JSON], parts["database/a"]) for parts in (first, again))
    assert after == {**before, "database": "y"}


def test_a_document_does_not_show_its_secrets():
    document = read("id: 1\ndatabase: {a: {driver: x, database: x, password: hunter2}}", of="file")
    assert "hunter2" not in repr(document)


def test_a_document_for_editing_has_no_secrets_and_loses_none():
    parts: dict[str, JSON | UnreadablePart] = {
        "database/a": {
            "tenantId": 1,
            "serviceCode": "a",
            "driver": "x",
            "database": "x",
            "username": "u",
            "enabled": True,
            "password": "hunter2",
            "apiToken": "hunter2",
            "smtp": {"host": "h", "password": "hunter2"},
            "list": [{"secret": "hunter2"}],
            "region": {"a": 1},
        },
        "ftp/bob": {"tenantId": 1, "username": "bob", "passwordHash": "hunter2"},
        "domain/primary": "a.example",
        "storage": UnreadablePart(b"{"),
    }
    shown = to_document(1, parts)
    assert "hunter2" not in json.dumps(shown)
    assert shown == {
        "id": 1,
        "domain": {"primary": "a.example"},
        "database": {
            "a": {
                "driver": "x",
                "database": "x",
                "username": "u",
                "enabled": True,
                "extra": {"region": {"a": 1}},
            }
        },
        "ftp": {"bob": {}},
    }
    assert diff_parts(parts, parse(shown).applied(parts, Keyring())) == []


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters=MASK), max_size=8
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(texts.map(lambda text: f"x{text}"), values, max_size=3)
names = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp"], exclude_characters=MASK
    ),
    min_size=1,
    max_size=8,
).filter(lambda text: text == text.strip() and not rules._INVISIBLE.search(text))
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)
hosts = st.lists(labels, min_size=1, max_size=3).map(".".join)
tenants = st.fixed_dictionaries(
    {
        "meta": st.fixed_dictionaries(
            {
                "code": st.from_regex(r"[A-Za-z0-9_]{1,5}", fullmatch=True),
                "name": names,
                "extra": extras,
            }
        )
    },
    optional={
        "domain/primary": hosts,
        "domain/aliases": st.lists(hosts, min_size=1, max_size=3),
        "domain/internal": hosts,
        "database/a-1": st.fixed_dictionaries(
            {"driver": st.just("mysql"), "database": names},
            optional={"password": names, "port": st.integers(1, 65535), "enabled": st.booleans()},
        ),
        "ftp/meta": st.fixed_dictionaries({}, optional={"passwordHash": names, "extra": extras}),
        "storage": st.fixed_dictionaries(
            {"uploadQuotaGb": st.integers(1, 9)}, optional={"extra": extras}
        ),
    },
)


@settings(max_examples=50)
@given(tenants, st.booleans())
def test_publishing_a_shown_document_again_changes_nothing(original: Any, as_json: bool):
    parts: Parts = {path: merged(1, path, None, value, RING) for path, value in original.items()}
    shown = to_document(1, parts)
    text = json.dumps(shown) if as_json else yaml.safe_dump(shown, allow_unicode=True)
    again = read(text, of="file", as_json=as_json).applied(parts, RING)
    assert diff_parts(parts, again) == []


@settings(max_examples=50)
@given(tenants, st.booleans())
def test_an_export_creates_the_same_tenant_elsewhere(original: Any, as_json: bool):
    parts: Parts = {path: merged(1, path, None, value, RING) for path, value in original.items()}
    exported = to_document(1, parts, secrets=True)
    text = json.dumps(exported) if as_json else yaml.safe_dump(exported, allow_unicode=True)
    document = read(text, of="file", as_json=as_json)
    for known in (Keyring(), RING):
        assert diff_parts(parts, document.applied({}, known)) == []
        assert diff_parts(parts, document.applied(parts, known)) == []


def test_the_export_of_a_section_without_fields_keeps_the_section():
    stored: Parts = {"storage": {"tenantId": 1}, "ftp/bob": {"tenantId": 1, "username": "bob"}}
    for secrets in (False, True):
        document = parse(to_document(1, stored, secrets=secrets))
        assert diff_parts(stored, document.applied(stored, RING)) == []
