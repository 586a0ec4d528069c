"""A tenant's document with masked secrets, and the edited document that comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.cli.commands.tenant.changes import lines
from mooring.errors import InvalidRequest
from mooring.masking import MASK, holds_mask
from mooring.messages import message
from mooring.model import JSON
from mooring.tenants.diff import change_to_json, masked_document, unmask_document
from mooring.tenants.document import parse, to_document
from mooring.tenants.parts import Parts, UnreadablePart, diff_parts
from mooring.tenants.secrets import Keyring

RING = Keyring([b"k" * 32])
FILE = {
    "id": 7,
    "meta": {"code": "acme", "name": "Acme", "extra": {"apiToken": "t0ken", "note": "hi"}},
    "domain": {"primary": "acme.example"},
    "database": {
        "orders": {"driver": "mysql", "host": "h", "port": 1, "database": "d", "password": "pass"}
    },
    "ftp": {"user": {"passwordHash": "hash"}},
}


def parts_of(file: object, current: Parts | None = None, ring: Keyring = RING) -> Parts:
    return parse(file).applied(current or {}, ring)


def test_all_secrets_are_masked_without_the_key():
    parts = parts_of(FILE)
    masked = masked_document(7, parts).document
    assert masked["database"]["orders"]["password"] == MASK  # type: ignore[index,call-overload]
    assert masked["ftp"]["user"]["passwordHash"] == MASK  # type: ignore[index,call-overload]
    assert masked["meta"]["extra"] == {"note": "hi", "apiToken": MASK}  # type: ignore[index,call-overload]
    clear = masked_document(7, parts, RING).document
    assert clear["database"]["orders"]["password"] == "pass"  # type: ignore[index,call-overload]
    assert diff_parts(parts, parts_of(clear, parts)) == []


def test_a_password_whose_key_is_unknown_stays_masked_and_is_reported():
    masked, problems = masked_document(7, parts_of(FILE), Keyring([b"j" * 32]))
    assert masked["database"]["orders"]["password"] == MASK  # type: ignore[index,call-overload]
    assert len(problems) == 1
    assert "pass" not in problems[0].text.split()


def test_an_unreadable_part_is_reported_and_omitted():
    masked, problems = masked_document(7, {**parts_of(FILE), "storage": UnreadablePart(b"{")})
    assert "storage" not in masked
    assert problems == [message("part_unreadable", path="storage")]


def test_a_mask_without_a_stored_secret_stays():
    document = parse({"id": 7, "meta": {"code": "a", "name": "a", "extra": {"token": MASK}}})
    assert holds_mask(dict(unmask_document(document, {}).sections["meta"]))


def test_masks_in_an_edited_list_are_not_guessed():
    stored: Parts = {"meta": {"users": [{"token": "a"}, {"token": "b"}]}}
    extra = {"users": [{"token": MASK}]}
    document = parse({"id": 7, "meta": {"code": "a", "name": "a", "extra": extra}})
    assert holds_mask(dict(unmask_document(document, stored).sections["meta"]))


words = st.text(st.characters(codec="utf-8", exclude_characters=f"\0{MASK}"), max_size=8)
texts = st.sampled_from(["https://u:pw@h", "password=1", '{"token": "x"}', '{"token": ""}'])
trees: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "token", "auth", "b"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["secret", "plain", "smtp", "dsn"]), trees, max_size=3))
def test_sending_a_masked_document_back_changes_nothing(extra: dict[str, JSON]):
    file = {**FILE, "meta": {"code": "acme", "name": "Acme", "extra": extra}}
    parts = parts_of(file)
    masked = masked_document(7, parts).document
    assert diff_parts(parts, unmask_document(parse(masked), parts).applied(parts, RING)) == []


def test_a_password_in_a_url_is_masked_and_kept():
    database: dict[str, JSON] = {
        "driver": "mysql",
        "host": "mysql://u:hunter2@h",
        "database": "d",
        "extra": {"dsn": "u:hunter2@tcp(h)/d", "url": "https://u:hunter2@h", "auth": "hunter2"},
    }
    parts = parts_of({"id": 7, "database": {"orders": database}})
    masked = masked_document(7, parts).document
    assert "hunter2" not in str(masked)
    assert diff_parts(parts, unmask_document(parse(masked), parts).applied(parts, RING)) == []
    # In another tenant it is another password, or none.
    orders: JSON = {**database, "host": f"mysql://u:{MASK}@evil", "extra": {}}
    sent = unmask_document(parse({"id": 7, "database": {"orders": orders}}), parts)
    with pytest.raises(InvalidRequest, match="masked"):
        sent.applied(parts, RING)


LINES: list[JSON] = ["-----BEGIN PRIVATE KEY-----", "MIIEvQ", "-----END PRIVATE KEY-----"]
BY_NUMBER: dict[str, JSON] = {f"line{n}": line for n, line in enumerate(LINES)}


@pytest.mark.parametrize(
    "extra",
    [{"a": LINES}, {"a": BY_NUMBER}, {"a": [BY_NUMBER]}, BY_NUMBER],
    ids=["list", "map", "map in a list", "fields"],
)
def test_the_lines_of_a_private_key_are_masked_and_kept(extra: dict[str, JSON]):
    meta = {"code": "acme", "name": "Acme"}
    parts = parts_of({**FILE, "meta": {**meta, "extra": extra}})
    masked = masked_document(7, parts).document
    assert "MIIEvQ" not in str(masked)
    assert "Acme" in str(masked)
    assert diff_parts(parts, unmask_document(parse(masked), parts).applied(parts, RING)) == []
    with pytest.raises(InvalidRequest, match="masked"):
        unmask_document(parse(masked), {}).applied({}, RING)
    assert "MIIEvQ" not in str(to_document(7, parts)), "kept secrets are omitted"
    after = parts_of({**FILE, "meta": {**meta, "extra": {"a": "b", "line1": "guess"}}})
    for one, other in ((parts, after), (after, parts), ({}, parts)):
        for difference in diff_parts(one, other):
            assert "MIIEvQ" not in str([change_to_json(difference), *lines(difference)])
