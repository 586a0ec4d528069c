"""A secret that is kept while where it is sent changes."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.masking import MASK, masked
from mooring.model import JSON
from mooring.tenants.document import parse
from mooring.tenants.masked_document import shown
from mooring.tenants.publish.plan import Parts
from mooring.tenants.redirect_guard import Diversion, is_place, of_config, of_document, of_value
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
        ({"token": "a", "target": "b"}, {"token": MASK, "target": "evil"}),
        ({"token": "a", "feed": "b.corp"}, {"token": MASK, "feed": "evil"}),
        ({"token": "a", "feeds": ["b"]}, {"token": MASK, "feeds": ["evil.example"]}),
        (
            {"host": "b", "login": {"password": "a", "sslMode": "on"}},
            {"host": "evil", "login": {"password": MASK, "sslMode": "on"}},
        ),
        (
            {"credentials": {"host": "b", "password": "a"}},
            {"credentials": {"host": "evil", "password": MASK}},
        ),
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


FLAT: dict[str, Any] = {
    "dbHost": "db.corp",
    "dbPassword": "hunter2",
    "smtpHost": "mail.corp",
    "plan": "silver",
    "limit": 5,
}


def edited(there: dict[str, Any], change: dict[str, Any]) -> Diversion | None:
    shown = masked(there)
    assert isinstance(shown, dict)
    return of_config(there, {**shown, **change})


@pytest.mark.parametrize("said", [{}, {"dbPassword": MASK}])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dbHost", "evil"),
        ("dbHost", None),
        ("dbRelay", "evil"),
        ("db_ip", "evil"),
        ("db-upstream", "evil"),
        ("host", "evil"),
        ("baseUrl", "evil"),
        ("targetName", "evil"),
        ("domain", "evil"),
        ("peers", ["evil"]),
        ("dbName", "evil.example"),
        ("dbName", "evil:5432"),
        ("dbName", "10.9.8.7"),
        ("dbName", "10.9.8.7:5432"),
        ("dbName", "::1"),
        ("dbName", "[fe80::1]:80"),
        ("dbName", "u@evil.example/x"),
        ("dbName", "tcp://evil"),
        ("dbName", "//evil/x"),
        ("dbName", "@tcp(evil)/x"),
        ("dbName", "one,evil.example"),
        ("dbOptions", "host=evil"),
        ("anything", "evil.example."),
        ("anything", {"of": "evil.example"}),
    ],
)
def test_in_a_flat_configuration_names_beside_one_another_belong_together(
    said: dict[str, Any], name: str, value: JSON
):
    told = edited(FLAT, {**said, name: value})
    assert told is not None
    assert told.secret == "dbPassword"
    assert told.place.startswith(name)
    assert edited(FLAT, {"dbPassword": "mine", name: value}) is None


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"plan": "gold"},
        {"limit": 9, "dbPoolSize": 3, "dbTimeout": 1.5, "dbReadOnly": True},
        {"peerCount": 3, "relaying": False},
        {"description": "Orders, as told at docs.example. Ask us (10:30, e.g. by phone)!"},
        {"since": "10:30", "version": "1.4.2", "day": "2026-01-31", "at": "2026-01-31T09:26:53Z"},
        {"ratio": "0.5", "dbLabel": "a/b"},
        {"smtpHost": "mail2.corp"},
        {"weight": 2, "enabled": False, "zone": "eu.west", "metadata": {"site": "https://a.b"}},
    ],
)
def test_in_a_flat_configuration_ordinary_edits_stay_possible(change: dict[str, Any]):
    assert edited(FLAT, change) is None


def test_a_secret_without_a_place_of_its_own_belongs_to_all():
    for secret in ("apiKey", "cachePassword", "token"):
        told = edited({secret: "a", "dbHost": "b.corp"}, {"dbHost": "evil.example"})
        assert told == Diversion(secret, "dbHost")


@pytest.mark.parametrize("guess", ["mysql://u:right@h/x", "mysql://u:wrong@h/x"])
def test_a_guess_of_a_hidden_place_is_answered_alike(guess: str):
    """Whether or not it is the one that is there."""
    for field in ("dsn", "url"):
        there: JSON = {field: "mysql://u:right@h/x", "password": "hunter2"}
        told = of_value("database/a", there, {field: guess, "password": MASK})
        assert told == Diversion("database/a.password", f"database/a.{field}")
    hidden: JSON = {"credentials": {"host": "h"}, "password": "hunter2"}
    host = "h" if "right" in guess else "other"
    told = of_value("x", hidden, {"credentials": {"host": host}, "password": MASK})
    assert told == Diversion("x.password", "x.credentials.host")
