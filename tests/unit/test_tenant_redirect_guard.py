"""A part that contains a kept secret changes only in the fields of an allow-list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mooring.masking import MASK, cleartext_secrets, masked
from mooring.messages import Message, message
from mooring.model import JSON
from mooring.tenants.diff import change_to_json, masked_document
from mooring.tenants.document import parse
from mooring.tenants.parts import PartDiff, Parts
from mooring.tenants.redirect_guard import (
    ALLOWED,
    redirect_in_document,
    redirect_in_value,
)
from mooring.tenants.secrets import Keyring

DATABASE: dict[str, Any] = {
    "driver": "mysql",
    "host": "db1",
    "port": 3306,
    "database": "orders",
    "username": "u",
    "password": "hunter2",
    "sslMode": "require",
    "maxOpenConns": 5,
}
SMTP: dict[str, Any] = {"host": "mail", "password": "hunter2", "retries": 3}


def stored(database: dict[str, Any], *, sealed: bool = True) -> Parts:
    ring = Keyring([b"k" * 32] if sealed else [])
    return parse({"id": 7, "database": {"orders": database}}).applied({}, ring)


def kept(secret: str, changed: str) -> Message:
    return message("redirect", secret=secret, changed=changed)


def redirect(parts: Parts, database: dict[str, Any]) -> Message | None:
    return redirect_in_document(parse({"id": 7, "database": {"orders": database}}), parts)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "password", [{"password": MASK}, {}, {"passwordEncrypted": "", "passwordKeyId": "x"}]
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "evil"),
        ("host", None),
        ("port", 1),
        ("driver", "postgres"),
        ("sslMode", "disable"),
        ("username", "v"),
        ("database", "x?host=evil"),
        ("extra", {"anything": "evil"}),
    ],
)
def test_a_password_that_is_not_restated_is_not_sent_elsewhere(
    sealed: bool, password: dict[str, Any], field: str, value: JSON
):
    parts = stored(DATABASE, sealed=sealed)
    rest = {name: inner for name, inner in DATABASE.items() if name != "password"}
    refused = redirect(parts, {**rest, **password, field: value})
    changed = f"database/orders.{'anything' if field == 'extra' else field}"
    passwords = ("database/orders.password", "database/orders.passwordEncrypted")
    assert refused in [kept(secret, changed) for secret in passwords]
    for restated in ("hunter2", "other", ""):
        assert redirect(parts, {**rest, field: value, "password": restated}) is None


def test_a_document_sent_back_as_shown_is_no_change():
    extra = {"smtp": SMTP, "dsn": "mysql://u:hunter2@h", "tier": "a"}
    parts = stored({**DATABASE, "extra": extra})
    document = masked_document(7, parts).document
    assert redirect_in_document(parse(document), parts) is None
    database = document["database"]["orders"]  # type: ignore[index,call-overload]
    assert isinstance(database, dict)
    for change in ({"maxOpenConns": 9}, {"enabled": False}):
        assert redirect(parts, {**database, **change}) is None
    assert redirect({}, {**database, "host": "evil"}) is None


def test_every_secret_of_a_part_must_be_restated():
    parts = stored({**DATABASE, "extra": {"apiToken": "t"}})
    moved = {**DATABASE, "host": "evil"}
    assert redirect(parts, moved) == kept("database/orders.apiToken", "database/orders.host")
    assert redirect(parts, {**moved, "extra": {"apiToken": "new"}}) is None


@pytest.mark.parametrize(
    ("old", "sent"),
    [
        (SMTP, {**SMTP, "host": "evil", "password": MASK}),
        (
            {"login": {"password": "a"}, "host": "b"},
            {"login": {"password": MASK}, "host": "evil"},
        ),
        (
            {"password": "a", "server": {"name": "b"}},
            {"password": MASK, "server": {"name": "evil"}},
        ),
        ({"login": {"password": "a"}}, {"login": {"password": MASK, "url": "evil"}}),
        ({"host": "a", "smtp": SMTP}, {"host": "b", "smtp": {**SMTP, "password": MASK}}),
        ({"all": [SMTP]}, {"all": [{**SMTP, "host": "evil", "password": MASK}]}),
        ([SMTP], [{**SMTP, "host": "evil", "password": MASK}]),
        ({"password": "a", "brokers": ["b"]}, {"password": MASK, "brokers": ["b", "evil"]}),
        ({"token": "a", "dsn": "b"}, {"token": MASK, "dsn": "evil"}),
        ({"clientSecret": "a", "tokenUrl": "b"}, {"clientSecret": MASK, "tokenUrl": "evil"}),
        ({"token": "a"}, {"token": MASK, "anything": 1}),
        (
            {"url": "https://u:a@h", "proxy": "b"},
            {"url": f"https://u:{MASK}@h", "proxy": "evil"},
        ),
        (
            {"credentials": {"host": "b", "password": "a"}},
            {"credentials": {"host": "evil", "password": MASK}},
        ),
        (
            {"metadata": {"host": "b", "password": "a"}},
            {"metadata": {"host": "evil", "password": MASK}},
        ),
        ({"token": "a"}, {"token": MASK, "secret": {"url": "evil"}}),
        ({"token": "a", "secret": "b"}, {"token": MASK, "secret": ["https://evil"]}),
        ({"token": "a", "plan": {"host": "b"}}, {"token": MASK, "plan": {"host": "evil"}}),
        ({"token": "a", "plan": 1}, {"token": MASK, "plan": {"host": "evil"}}),
        ({"token": "a", "retries": [1]}, {"token": MASK, "retries": ["https://evil"]}),
        ({"token": "a"}, {"token": MASK, "limit": {"login": {"host": "evil"}}}),
        ({"token": "a"}, {"token": MASK, "hostToken": "evil"}),
        ({"token": "a", "PASSWORD": "b"}, {"token": MASK, "PASSWORD": "c"}),
    ],
)
def test_a_value_with_a_kept_secret_does_not_change(old: JSON, sent: JSON):
    assert redirect_in_value("x", old, sent) is not None


@pytest.mark.parametrize(
    ("old", "sent"),
    [
        (SMTP, {**SMTP, "password": MASK}),
        (SMTP, {**SMTP, "password": MASK, "retries": 1}),
        (SMTP, {**SMTP, "host": "evil", "password": "mine"}),
        (SMTP, {"host": "evil"}),
        ({"token": "a", "dbPassword": "b"}, {"token": MASK, "dbPassword": "c"}),
        ({"token": "a", "dbPassword": "b"}, {"token": MASK}),
        ({"url": "https://u:a@h", "token": "b"}, {"url": f"https://u:{MASK}@h", "token": MASK}),
        ({"token": "a", "note": ""}, {"token": MASK}),
        ({"token": "a", "metadata": {}}, {"token": MASK, "metadata": {"site": "https://a.b"}}),
        ({"token": "a"}, {"token": MASK, "metadata": {"site": {"hosts": ["b"]}}}),
        ({"token": "a", "pool": {"limit": 1}}, {"token": MASK, "pool": {"limit": 2}}),
        ("a", "b"),
        (None, SMTP),
    ],
)
def test_other_changes_are_allowed(old: JSON, sent: JSON):
    assert redirect_in_value("x", old, sent) is None


@pytest.mark.parametrize("field", sorted(ALLOWED))
def test_allowed_fields_can_change_beside_a_kept_secret(field: str):
    old: dict[str, JSON] = {"token": "a", field: 1}
    shown = masked(old)
    assert isinstance(shown, dict)
    assert redirect_in_value("", old, {**shown, field: 2}) is None
    other = redirect_in_value("", old, {**shown, f"{field}Host": "evil"})
    assert other == kept("token", f"{field}Host")


def test_the_documentation_lists_the_allowed_fields():
    text = (Path(__file__).parents[2] / "docs/access.md").read_text()
    section = text.partition("### Writing secrets")[2].partition("\n#")[0]
    _, _, listed = section.partition("it may change only these fields:")
    assert set(re.findall(r"`(\w+)`", listed.partition(".")[0])) == ALLOWED


@pytest.mark.parametrize("guess", ["mysql://u:right@h/x", "mysql://u:wrong@h/x"])
def test_right_and_wrong_guesses_of_a_hidden_value_get_the_same_answer(guess: str):
    for field in ("dsn", "url"):
        old: JSON = {field: "mysql://u:right@h/x", "password": "hunter2"}
        refused = redirect_in_value("database/a", old, {field: guess, "password": MASK})
        assert refused == kept("database/a.password", f"database/a.{field}")
    hidden: JSON = {"credentials": {"host": "h"}, "password": "hunter2"}
    host = "h" if "right" in guess else "other"
    refused = redirect_in_value("x", hidden, {"credentials": {"host": host}, "password": MASK})
    assert refused == kept("x.password", "x.credentials.host")


@pytest.mark.parametrize("line", ["", "\nMIIEabc"])
def test_a_private_key_in_the_names_of_fields_is_not_shown(line: str):
    key = f"-----BEGIN PRIVATE KEY-----{line}"
    old: JSON = {key: "", "MIIEabc": "x", "host": "a", "password": "hunter2"}
    sent: JSON = {MASK: MASK, "host": "evil"}
    for refused in (
        redirect_in_value("x", old, sent),
        redirect_in_value("x", {"inner": old}, {"inner": sent}),
    ):
        assert refused is not None
        assert "MII" not in refused.text
    shown = change_to_json(PartDiff("platform/configs/x", {}, old))
    assert "MII" not in str(shown)
    assert "MII" not in str(list(cleartext_secrets(old)))
