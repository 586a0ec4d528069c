"""A tenant's document for people, and what they send back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mooring.model import JSON
from mooring.tenants.document import parse
from mooring.tenants.masks import restored, shown
from mooring.tenants.publishing import Parts, Unread, differences
from mooring.tenants.secrets import MASK, Keyring, holds_mask

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


def made(file: object, there: Parts | None = None, ring: Keyring = RING) -> Parts:
    return parse(file).applied(there or {}, ring)


def test_all_secrets_are_masked_and_open_with_the_key():
    parts = made(FILE)
    told = shown(7, parts).document
    assert told["database"]["orders"]["password"] == MASK  # type: ignore[index,call-overload]
    assert told["ftp"]["user"]["passwordHash"] == MASK  # type: ignore[index,call-overload]
    assert told["meta"]["extra"] == {"note": "hi", "apiToken": MASK}  # type: ignore[index,call-overload]
    clear = shown(7, parts, RING).document
    assert clear["database"]["orders"]["password"] == "pass"  # type: ignore[index,call-overload]
    assert differences(parts, made(clear, parts)) == []


def test_a_password_without_its_key_stays_masked_and_is_told():
    told, problems = shown(7, made(FILE), Keyring([b"j" * 32]))
    assert told["database"]["orders"]["password"] == MASK  # type: ignore[index,call-overload]
    assert len(problems) == 1
    assert "pass" not in problems[0].split()


def test_what_cannot_be_understood_is_told_and_left_out():
    told, problems = shown(7, {**made(FILE), "storage": Unread(b"{")})
    assert "storage" not in told
    assert problems == ["storage cannot be understood and is left out: to publish may remove it"]


def test_a_mask_of_which_nothing_is_there_stays():
    document = parse({"id": 7, "meta": {"code": "a", "name": "a", "extra": {"token": MASK}}})
    assert holds_mask(dict(restored(document, {}).sections["meta"]))


def test_masks_in_a_list_that_was_edited_are_not_guessed():
    there: Parts = {"meta": {"users": [{"token": "a"}, {"token": "b"}]}}
    extra = {"users": [{"token": MASK}]}
    document = parse({"id": 7, "meta": {"code": "a", "name": "a", "extra": extra}})
    assert holds_mask(dict(restored(document, there).sections["meta"]))


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
trees: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "token", "password", "b"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["secret", "plain", "smtp", "keys"]), trees, max_size=3))
def test_what_is_shown_and_sent_back_changes_nothing(extra: dict[str, JSON]):
    file = {**FILE, "meta": {"code": "acme", "name": "Acme", "extra": extra}}
    parts = made(file)
    told = shown(7, parts).document
    assert differences(parts, restored(parse(told), parts).applied(parts, RING)) == []
