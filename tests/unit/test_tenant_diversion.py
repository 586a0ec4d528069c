"""A secret that is kept while where it is sent changes."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.model import JSON
from mooring.tenants.diversion import Diversion, is_place, of_document, of_value
from mooring.tenants.document import parse
from mooring.tenants.masks import shown
from mooring.tenants.publishing import Parts
from mooring.tenants.secrets import MASK, Keyring

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
SMTP: dict[str, Any] = {"host": "mail", "password": "hunter2", "tries": 3}


def made(database: dict[str, Any], *, sealed: bool = True) -> Parts:
    ring = Keyring([b"k" * 32] if sealed else [])
    return parse({"id": 7, "database": {"orders": database}}).applied({}, ring)


def found(there: Parts, database: dict[str, Any]) -> Diversion | None:
    return of_document(parse({"id": 7, "database": {"orders": database}}), there)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "said", [{"password": MASK}, {}, {"passwordEncrypted": "", "passwordKeyId": "x"}]
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "evil"),
        ("port", 1),
        ("driver", "postgres"),
        ("sslMode", "disable"),
        ("host", None),
        ("username", "x:y@evil/?"),
        ("database", "x?host=evil"),
    ],
)
def test_a_password_that_is_not_said_anew_stays_where_it_is(
    sealed: bool, said: dict[str, Any], field: str, value: JSON
):
    there = made(DATABASE, sealed=sealed)
    rest = {name: inner for name, inner in DATABASE.items() if name != "password"}
    told = found(there, {**rest, **said, field: value})
    assert told is not None
    assert told.secret in ("database/orders.password", "database/orders.passwordEncrypted")
    assert told.place == f"database/orders.{field}"
    # Who says it may send it where they like.
    for password in ("hunter2", "other", ""):
        assert found(there, {**rest, field: value, "password": password}) is None


def test_what_is_shown_and_changed_elsewhere_is_no_matter():
    there = made({**DATABASE, "extra": {"smtp": SMTP, "dsn": "mysql://u:hunter2@h", "tier": "a"}})
    document = shown(7, there).document
    assert of_document(parse(document), there) is None
    database = document["database"]["orders"]  # type: ignore[index,call-overload]
    assert isinstance(database, dict)
    for change in ({"username": "v"}, {"database": "other"}, {"maxOpenConns": 9}):
        assert found(there, {**database, **change}) is None
    extra = {"smtp": {**SMTP, "password": MASK, "tries": 9}, "tier": "b", "apiToken": "new"}
    assert found(there, {**database, "extra": extra}) is None
    assert found(there, {**database, "extra": {"smtp": {"host": "evil"}}}) is None
    assert found({}, {**database, "host": "evil"}) is None


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (SMTP, {**SMTP, "host": "evil", "password": MASK}),
        (
            {"login": {"password": "a"}, "host": "b"},
            {"login": {"password": MASK}, "host": "evil"},
        ),
        (
            {"password": "a", "server": {"name": "b", "tries": 1}},
            {"password": MASK, "server": {"name": "evil", "tries": 1}},
        ),
        (
            {"host": "b", "login": {"password": "a"}},
            {"host": "b", "login": {"password": MASK, "url": "evil"}},
        ),
        ({"all": [SMTP]}, {"all": [{**SMTP, "host": "evil", "password": MASK}]}),
        ([SMTP], [{**SMTP, "host": "evil", "password": MASK}]),
        ({"password": "a", "brokers": ["b"]}, {"password": MASK, "brokers": ["evil"]}),
        ({"password": "a", "brokers": ["b"]}, {"password": MASK, "brokers": ["b", "evil"]}),
        ({"token": "a", "hook": "b"}, {"token": MASK, "hook": "https://evil"}),
        ({"token": "a", "dsn": "b"}, {"token": MASK, "dsn": "evil"}),
        ({"token": "a"}, {"token": MASK, "dbPort": 1}),
    ],
)
def test_what_belongs_to_a_secret_stands_beside_or_around_it(there: JSON, told: JSON):
    assert of_value("x", there, told) is not None


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (SMTP, {**SMTP, "password": MASK}),
        (SMTP, {**SMTP, "password": MASK, "tries": 1}),
        (SMTP, {**SMTP, "host": "evil", "password": "mine"}),
        (SMTP, {"host": "evil"}),
        ({"host": "a", "smtp": SMTP}, {"host": "b", "smtp": {**SMTP, "password": MASK}}),
        (
            {"token": "a", "smtp": SMTP},
            {"token": MASK, "smtp": {**SMTP, "host": "b", "password": "new"}},
        ),
        ({"server": SMTP}, {"server": {**SMTP, "password": MASK, "tries": 1}}),
        (
            {"token": "a", "serverPassword": "b"},
            {"token": MASK, "serverPassword": "c"},
        ),
        ({"url": "https://u:a@h", "token": "b"}, {"url": f"https://u:{MASK}@h", "token": MASK}),
        ("a", "b"),
        (None, SMTP),
    ],
)
def test_what_does_not_belong_to_it_may_change(there: JSON, told: JSON):
    assert of_value("x", there, told) is None


def test_places_by_name():
    for name in ("host", "dbHost", "port", "smtp_port", "PORT", "baseUrl", "endpoint", "sslmode"):
        assert is_place(name), name
    for name in ("export", "support", "name", "serverPassword", "report", "status", "curly"):
        assert not is_place(name), name
