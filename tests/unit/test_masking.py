"""Values that are hidden from people: by the names of fields, and within texts."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.masking import (
    MASK,
    cleartext_secrets,
    holds_mask,
    holds_secret,
    is_hidden,
    is_secret,
    masked,
    masked_text,
)
from mooring.model import JSON


def encoded(value: JSON) -> str:
    return msgspec.json.encode(value).decode()


@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_a_private_key_is_masked_under_any_name(kind: str):
    pem = f"-----BEGIN {kind}-----\nMIIEvQ\n-----END {kind}-----\n"
    assert masked({"cert": pem, "a": [f"x {pem} y"], "b": "c"}) == {
        "cert": f"{MASK}\n",
        "a": [f"x {MASK}\n y"],
        "b": "c",
    }
    assert masked_text(pem.partition("-----END")[0]) == MASK, "a truncated key, too"
    assert holds_secret({"cert": pem})
    assert not holds_secret({"cert": "-----BEGIN CERTIFICATE-----\nMIIC\n"})


PUTTY = (
    "PuTTY-User-Key-File-3: ssh-ed25519\r\nEncryption: none\r\nComment: me\r\n"
    "Public-Lines: 1\r\nAAAA\r\nPrivate-Lines: 1\r\nMIIEvQ\r\nPrivate-MAC: 0123abCD"
)
KEYS = {
    "lower case": "-----begin private key-----\nMIIEvQ\n-----end private key-----",
    "SSH2": "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nMIIEvQ\n"
    "---- END SSH2 ENCRYPTED PRIVATE KEY ----",
    "OpenSSH": "-----BEGIN OPENSSH PRIVATE KEY-----\nMIIEvQ\n-----END OPENSSH PRIVATE KEY-----",
    "escaped": r"-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----",
    "PuTTY": PUTTY,
    "old PuTTY": PUTTY.replace("File-3", "File-2").replace("MAC", "Hash").lower(),
}


@pytest.mark.parametrize("pem", KEYS.values(), ids=KEYS)
def test_a_private_key_is_masked_in_any_format_and_at_any_place(pem: str):
    assert masked({"a": pem, "b": [f"x {pem} y", {"c": pem}]}) == {
        "a": MASK,
        "b": [f"x {MASK} y", {"c": MASK}],
    }
    within = masked({"json": encoded({"a": [pem]})})
    assert within == {"json": f'{{"a":["{MASK}"]}}'}
    assert holds_secret([{"a": pem}])
    assert [*cleartext_secrets({"a": {"b": pem}})] == ["a.b"]


@pytest.mark.parametrize("pem", KEYS.values(), ids=KEYS)
def test_a_private_key_that_is_the_name_of_a_field_is_masked(pem: str):
    document: JSON = {"a": {pem: {"b": 1}}}
    assert masked(document) == {"a": {MASK: {"b": 1}}}
    assert holds_secret(document)
    assert [*cleartext_secrets(document)] == [f"a.{MASK}"]
    assert holds_mask(masked(document)), "written back, it would overwrite the key"


@pytest.mark.parametrize("pem", KEYS.values(), ids=KEYS)
def test_a_private_key_whose_lines_are_elements_is_masked(pem: str):
    texts = re.split(r"\r?\n|\\n", pem)
    lines: list[JSON] = [*texts]
    by_number: dict[str, JSON] = {f"line {n}": line for n, line in enumerate(lines)}
    by_line: dict[str, JSON] = dict.fromkeys(texts, 1)
    values: list[JSON] = [lines, by_number, by_line, {"a": lines}, {"a": {"b": by_number}}]
    for document in (*values, values):
        assert "MIIEvQ".lower() not in str(masked(document)).lower()
        assert "MIIEvQ".lower() not in str(masked({"json": encoded(document)})).lower()
        assert holds_secret(document)
        assert holds_mask(masked(document)), "written back, it would overwrite the key"
    assert masked({"a": lines, "b": "c"}) == {"a": [MASK] * len(lines), "b": "c"}
    assert masked({**by_number, "weight": 5, "none": None, "more": ["x"]}) == {
        **dict.fromkeys(by_number, MASK),
        "weight": 5,
        "none": None,
        "more": MASK,
    }
    assert [*cleartext_secrets({"a": lines, "b": {"c": by_number}})] == ["a", "b.c"]
    assert [*cleartext_secrets(by_number)] == [*by_number]


def test_a_mask_is_found_under_any_name():
    values: list[JSON] = [{"a": MASK}, {"a": [f"x {MASK}"]}, MASK, [MASK, "x"]]
    assert all(map(holds_mask, values))


@pytest.mark.parametrize(
    "field",
    [
        "password",
        "passwordHash",
        "PasswordEncrypted",
        "db_passwd",
        "pwd",
        "passphrase",
        "apiToken",
        "clientSecret",
        "secretKey",
        "accessKey",
        "access_key",
        "api-key",
        "privateKey",
        "credentials",
        "auth",
        "smtpAuth",
        "basic_auth",
        "Authorization",
        "dsn",
        "READ_DSN",
        "connectionString",
        "conn_str",
        "sessionCookie",
    ],
)
def test_values_of_fields_with_secret_names_are_masked(field: str):
    assert is_hidden(field)
    assert masked({field: "x", "a": [{field: ["y"]}], "b": "c"}) == {
        field: MASK,
        "a": [{field: MASK}],
        "b": "c",
    }
    assert masked({field: ""}) == {field: ""}
    assert masked({field: None}) == {field: None}
    assert holds_secret([{"a": {field: 1}}])
    assert holds_mask({"a": [{field: MASK}]})
    assert not holds_mask({"a": "y", field: "x"})


@pytest.mark.parametrize(
    "field",
    [
        "passwordKeyId",
        "username",
        "code",
        "key",
        "keyId",
        "name",
        "author",
        "authType",
        "connStrategy",
    ],
)
def test_harmless_values_are_shown(field: str):
    assert masked({field: "x"}) == {field: "x"}
    assert not holds_secret({field: "x"})


def test_possible_secrets_are_hidden_and_not_encrypted():
    for field in ("dsn", "auth", "connectionString"):
        assert is_hidden(field)
        assert not is_secret(field)
    assert is_secret("password")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://u:hunter2@h:3306/x", "mysql://u:••••••@h:3306/x"),
        ("https://u:hunter2@h", "https://u:••••••@h"),
        ("https://u:hun@ter2@h/a", "https://u:••••••@h/a"),
        ("mysql://u:hun/ter2@h/a", "mysql://u:••••••@h/a"),
        ("redis://:hunter2@a,redis://:hunter2@b", "redis://:••••••@a,redis://:••••••@b"),
        ("is at ftp://u:hunter2@h/x now", "is at ftp://u:••••••@h/x now"),
        ("u:hunter2@tcp(h:3306)/x?tls=true", "u:••••••@tcp(h:3306)/x?tls=true"),
        ("host=h user=u password='hunter 2' port=1", "host=h user=u password='••••••' port=1"),
        ("Server=h;User Id=u;Password=hunter 2;X=1", "Server=h;User Id=u;Password=••••••;X=1"),
        ("https://h/?a=1&access_token=hunter2&b=2", "https://h/?a=1&access_token=••••••&b=2"),
        ("url=https://h/?token=hunter2", "url=https://h/?token=••••••"),
        ('{"smtp": {"password": "hunter2", "port": 1}}', '{"smtp":{"password":"••••••","port":1}}'),
        ('["https://u:hunter2@h"]', '["https://u:••••••@h"]'),
    ],
)
def test_a_secret_within_a_text_is_masked(text: str, shown: str):
    assert masked_text(text) == shown == masked_text(shown)
    assert masked({"url": text, "list": [text]}) == {"url": shown, "list": [shown]}
    assert holds_secret({"url": text})
    assert holds_mask({"url": shown})
    assert not holds_mask({"url": text})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "http://h:8080/@scope/a",
        "http://[::1]:80/a@b",
        "ssh://git@example.com/a",
        "someone@example.com",
        "token-service:8080",
        "a=1 b=2",
        '{"a": 1}',
        "{oops",
        "nginx:1.25@sha256:abc",
    ],
)
def test_a_text_without_secrets_is_unchanged(text: str):
    assert masked_text(text) == text
    assert not holds_secret(text)


@given(st.text(st.characters(codec="utf-8")) | st.text("a:/@=;&\"'{}[]? ", max_size=60))
def test_masking_twice_changes_nothing(text: str):
    shown = masked_text(text)
    assert masked_text(shown) == shown
    assert masked({"a": text}) == {"a": shown}
    assert shown == text or holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "a://b:",
        "://@:",
        "a=",
        'password="',
        "password='",
        "token=",
        "@a",
        "a:@",
        "{",
        "[",
        " ",
        '\\"',
        "x",
        "-",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "putty-user-key-file-1:",
    ],
)
def test_masking_takes_linear_time(text: str):
    """A quadratic search would take hours."""
    much = text * 200_000
    for long in (much, f"u:{much}=", f"{much}://", f"://{much}"):
        assert not holds_mask(long)
        masked_text(long)


def test_json_text_in_a_map_is_searched():
    inner = msgspec.json.encode({"password": "hunter2"}).decode()
    assert "hunter2" not in masked_text(msgspec.json.encode({"a": inner}).decode())
    assert "hunter2" not in masked_text('{"password": "hunter2", "password": ""}')
    assert masked_text("[" * 100_000) == "[" * 100_000
    assert "hunter2" not in masked_text("[" * 900 + '"hunter2"' + "]" * 900)
    deep: JSON = "hunter2"
    for _ in range(900):
        deep = {"a": deep}
    assert "hunter2" not in str(masked(deep))
    assert holds_secret(deep)
    assert not holds_mask(deep)
    assert MASK not in masked_text("[1, 2]")


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({"password": "hunter2", "host": "h"}, ["password"]),
        ({"password": MASK, "token": "", "apiKey": None}, []),
        ({"smtp": {"password": "hunter2", "host": "h"}}, ["smtp.password"]),
        ({"credentials": {"user": "u"}}, ["credentials"]),
        ({"url": "https://u:hunter2@h", "other": f"https://u:{MASK}@h"}, ["url"]),
        ({"mirrors": ["https://h", "https://u:hunter2@h"]}, ["mirrors"]),
        ({"accounts": [{"user": "u"}, {"password": "hunter2"}]}, ["accounts"]),
        ({"config": '{"password": "hunter2"}'}, ["config"]),
        ({"plan": "gold", "hosts": ["a", "b"], "n": 1}, []),
        ("password", []),
    ],
)
def test_secrets_in_clear_text_are_found_by_their_fields(value: JSON, fields: list[str]):
    assert list(cleartext_secrets(value)) == fields
