"""What can be written for a tenant: every rule is broken once, and each error names the field."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from mooring.errors import InvalidRequest
from mooring.masking import MASK
from mooring.model import JSON
from mooring.tenants.publish.merge import merged
from mooring.tenants.secrets import Keyring
from mooring.tenants.validation import checked, checked_common

META: dict[str, JSON] = {"code": "one", "name": "One"}
DATABASE: dict[str, JSON] = {"driver": "mysql", "database": "x"}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("meta", {**META, "code": "a-b"}, "meta.code must be letters, digits and underscores"),
        ("meta", {**META, "code": "ä"}, "meta.code must be letters"),
        ("meta", {**META, "code": "one\n"}, "meta.code must be letters"),
        ("meta", {**META, "code": 5}, "meta.code must be text, not a number (put it in quotes)"),
        ("meta", {**META, "code": ""}, "meta.code must be"),
        ("meta", {**META, "code": "a" * 513}, "meta.code is longer than 512"),
        ("meta", {"name": "One"}, "meta has no code"),
        ("meta", {"code": "one"}, "meta has no name"),
        ("meta", {**META, "name": " "}, "meta.name is empty"),
        ("meta", {**META, "name": "a\x00b"}, "meta.name contains a control character"),
        ("meta", {**META, "name": "a" * 513}, "meta.name is longer than 512"),
        ("meta", {**META, "name": " One"}, "meta.name starts or ends with a space"),
        ("meta", {**META, "name": "One\u3000"}, "meta.name starts or ends with a space"),
        (
            "meta",
            {**META, "name": "One\u202e"},
            "meta.name contains the invisible character U+202E",
        ),
        (
            "meta",
            {**META, "name": "O\u2066ne"},
            "meta.name contains the invisible character U+2066",
        ),
        (
            "meta",
            {**META, "name": "O\u200fne"},
            "meta.name contains the invisible character U+200F",
        ),
        (
            "meta",
            {**META, "name": "One\u200b"},
            "meta.name contains the invisible character U+200B",
        ),
        (
            "meta",
            {**META, "name": "\ufeffOne"},
            "meta.name contains the invisible character U+FEFF",
        ),
        ("meta", {**META, "name": "\u200b"}, "meta.name contains the invisible character U+200B"),
        (
            "meta",
            {**META, "name": "O\u00adne"},
            "meta.name contains the invisible character U+00AD",
        ),
        (
            "meta",
            {**META, "name": "O\u200dne"},
            "meta.name contains the invisible character U+200D",
        ),
        (
            "meta",
            {**META, "name": "नाम\u200d"},
            "meta.name contains the invisible character U+200D",
        ),
        (
            "meta",
            {**META, "name": "ن\u200c\u200cا"},
            "meta.name contains the invisible character U+200C",
        ),
        ("meta", {**META, "name": "O\u2028ne"}, "meta.name contains a control character"),
        ("meta", {**META, "status": "gone"}, "meta.status must be one of active, inactive, susp"),
        ("meta", {**META, "status": ["active"]}, "meta.status must be one of"),
        ("meta", {**META, "billingPlan": 1}, "meta.billingPlan must be text"),
        ("meta", {**META, "id": 2}, "meta.id is 2, but must be 1 here"),
        ("meta", {**META, "id": "1"}, "meta.id must be a whole number, not text"),
        ("meta", {**META, "id": True}, "meta.id must be a whole number"),
        ("meta", [META], "meta must be a map of fields, not a list"),
        ("meta", None, "meta must be a map of fields, not nothing"),
        ("database/Query", DATABASE, "database/Query must be in kebab-case"),
        ("database/a_b", DATABASE, "database/a_b must be in kebab-case"),
        ("database/-a", DATABASE, "database/-a must be in kebab-case"),
        ("database/a", {"driver": "mysql"}, "database/a has no database"),
        ("database/a", {"database": "x"}, "database/a has no driver"),
        ("database/a", {**DATABASE, "port": 0}, "database/a.port must be between 1 and 65535"),
        ("database/a", {**DATABASE, "port": 65536}, "database/a.port must be between"),
        ("database/a", {**DATABASE, "port": "3306"}, "database/a.port must be a whole number"),
        ("database/a", {**DATABASE, "port": 1.5}, "database/a.port must be a whole number"),
        ("database/a", {**DATABASE, "enabled": "yes"}, "database/a.enabled must be true or false"),
        ("database/a", {**DATABASE, "enabled": 1}, "database/a.enabled must be true or false"),
        ("database/a", {**DATABASE, "maxOpenConns": -1}, "database/a.maxOpenConns must be between"),
        ("database/a", {**DATABASE, "serviceCode": "b"}, "database/a.serviceCode is 'b', but must"),
        ("database/a", {**DATABASE, "password": 5}, "database/a.password must be text"),
        ("ftp/a b", {}, "must be letters, digits, dots, hyphens and underscores"),
        ("ftp/默认", {}, "must be letters, digits, dots"),
        ("ftp/bob", {"username": "al"}, "ftp/bob.username is 'al', but must be 'bob' here"),
        ("ftp/bob", {"tenantId": 2}, "ftp/bob.tenantId is 2, but must be 1 here"),
        ("ftp/bob", {"writePermission": "no"}, "ftp/bob.writePermission must be true or false"),
        ("ftp/bob", {"homeDirectory": []}, "ftp/bob.homeDirectory must be text, not a list"),
        ("storage", {"uploadQuotaGb": -1}, "storage.uploadQuotaGb must be between"),
        ("storage", {"uploadQuotaGb": True}, "storage.uploadQuotaGb must be a number"),
        ("storage", {"maxConcurrentUploads": 1.5}, "storage.maxConcurrentUploads must be a whole"),
        ("domain/primary", "a_b.example", "domain/primary must be a host name"),
        ("domain/primary", "", "domain/primary must be a host name"),
        ("domain/primary", "a.example.", "domain/primary must be a host name"),
        ("domain/primary", "bücher.example", "write xn--bcher-kva.example (punycode) instead of"),
        ("domain/aliases", ["straße.de"], "write xn--strae-oqa.de (punycode) instead of straße.de"),
        ("domain/primary", "☃.example", "domain/primary must be a host name"),
        ("domain/primary", "a..b", "domain/primary must be a host name"),
        ("domain/primary", "-a.example", "domain/primary must be a host name"),
        ("domain/primary", "a.example:80", "domain/primary must be a host name"),
        ("domain/primary", "http://a.example", "domain/primary must be a host name"),
        ("domain/primary", "a.example\n", "domain/primary must be a host name"),
        ("domain/primary", f"{'a' * 64}.example", "domain/primary must be a host name"),
        ("domain/primary", ".".join(["a"] * 130), "domain/primary must be a host name"),
        ("domain/internal", 5, "domain/internal must be text"),
        ("domain/aliases", "a.example", "domain/aliases must be a list of host names, not text"),
        ("domain/aliases", ["a.example", "*"], "domain/aliases must be a host name"),
        ("domain/other", "a.example", "domain/other is not a part of a tenant"),
        ("ftp/a/b", {}, "ftp/a/b is not a part of a tenant"),
        ("storage", {"extra": [1]}, "storage.extra must be a map of fields"),
        (
            "storage",
            {"extra": {"uploadQuotaGb": 1}},
            "storage.extra.uploadQuotaGb is a known field",
        ),
    ],
)
def test_every_rule_names_the_field(path: str, value: JSON, problem: str):
    with pytest.raises(InvalidRequest) as error:
        checked(1, path, value)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "name", ["می\u200cخواهم", "क्\u200dष", "\U0001f468\u200d\U0001f469", "Ünal-Öz"]
)
def test_joiners_within_a_word_belong_to_the_name(name: str):
    assert checked(1, "meta", {**META, "name": name}) == {"id": 1, "status": "active", **META} | {
        "name": name
    }


@pytest.mark.parametrize("tenant", [0, -1, 2**63, True, "1", None])
def test_an_id_is_a_positive_integer(tenant: Any):
    with pytest.raises(InvalidRequest, match="positive integer"):
        checked(tenant, "meta", META)


@pytest.mark.parametrize(
    ("path", "typo", "field"),
    [
        ("meta", "nmae", "name"),
        ("meta", "billing_plan", "billingPlan"),
        ("database/a", "maxOpenConn", "maxOpenConns"),
        ("database/a", "pasword", "password"),
        ("ftp/bob", "homeDir", "homeDirectory"),
        ("storage", "uploadQuotaGB", "uploadQuotaGb"),
        ("storage", "extras", "extra"),
    ],
)
def test_a_typo_is_corrected_to_the_nearest_field(path: str, typo: str, field: str):
    with pytest.raises(InvalidRequest) as error:
        checked(1, path, {**META, typo: "hunter2"} if path == "meta" else {typo: "hunter2"})
    message = str(error.value)
    assert f"{path} has an unknown field {typo!r}, did you mean {field!r}?" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "value",
    [
        {"password": ["hunter2"]},
        {"password": {"x": "hunter2"}},
        {"passwordEncrypted": ["hunter2"]},
        {"passwordEncrypted": "not base64: hunter2"},
        {"passwordEncrypted": "aHVudGVyMg=="},
        {"passwordKeyId": ["hunter2"]},
        {"password": "hunter2\ud800"},
        {"password": "hunter2", "port": "x"},
        {"extra": {"token": "hunter2", "x": {1}}},
        {"password": "hunter2", "pasword": "hunter2"},
        {"password": b"hunter2"},
    ],
)
def test_no_error_shows_a_secret(value: Any):
    with pytest.raises(InvalidRequest) as error:
        merged(1, "database/a", None, {**DATABASE, **value}, Keyring())
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        datetime.date(2024, 1, 1),
        float("nan"),
        float("inf"),
        2**64,
        -(2**63) - 1,
        pytest.param(16**5000, id="huge"),
        (1, 2),
        {1: "a"},
        {None: "a"},
        {"a": {True: 1}},
        ["\ud800"],
        {"\ud800": 1},
        object(),
    ],
)
def test_only_json_values_are_accepted(value: Any):
    with pytest.raises(InvalidRequest, match=r"storage\.extra\.x"):
        checked(1, "storage", {"extra": {"x": value}})
    with pytest.raises(InvalidRequest, match="platform/configs/x"):
        checked_common("platform/configs/x", value)


def test_a_value_that_expands_to_billions_is_refused_at_once():
    bomb: Any = ["x"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    around: Any = []
    around.append(around)
    for value in (bomb, around):
        documents: list[JSON] = [{"extra": {"x": value}}, {"uploadQuotaGb": value}]
        for document in documents:
            with pytest.raises(InvalidRequest, match="too many nested values"):
                checked(1, "storage", document)
        with pytest.raises(InvalidRequest, match="too many nested values"):
            checked(1, "domain/aliases", value)


def test_a_valid_part_is_completed_from_its_key():
    assert checked(1, "meta", META) == {"id": 1, "status": "active", **META}
    assert checked(1, "database/a-1", {**DATABASE, "port": None}) == {
        "tenantId": 1,
        "serviceCode": "a-1",
        "enabled": True,
        **DATABASE,
    }
    assert checked(1, "ftp/meta", {"extra": {"x": [1]}}) == {
        "tenantId": 1,
        "username": "meta",
        "x": [1],
    }
    assert checked(2**60, "storage", {"tenantId": 2**60}) == {"tenantId": 2**60}
    hosts: list[JSON] = ["example.com", "10.0.0.1", "localhost", "XN--FSQU00A.example", "a-b.c"]
    assert checked(1, "domain/aliases", hosts) == hosts


class TestMerging:
    RING = Keyring([b"k" * 32])

    def test_a_masked_secret_is_refused(self):
        for value in (
            {"password": MASK},
            {"extra": {"token": MASK}},
            {"extra": {"smtp": {"password": MASK}}},
            {"extra": {"list": [{"secret": MASK}]}},
        ):
            with pytest.raises(InvalidRequest, match="masked"):
                merged(1, "database/a", None, {**DATABASE, **value}, self.RING)  # type: ignore[dict-item]
        with pytest.raises(InvalidRequest, match="passwordHash is masked"):
            merged(1, "ftp/bob", {"passwordHash": "x"}, {"passwordHash": MASK}, self.RING)

    def test_an_omitted_secret_is_kept_and_an_empty_one_removed(self):
        sealed, of = self.RING.seal("pw")
        stored: dict[str, JSON] = {"passwordEncrypted": sealed, "passwordKeyId": of}
        kept = merged(1, "database/a", stored, DATABASE, self.RING)
        assert isinstance(kept, dict)
        assert stored.items() <= kept.items()
        gone = merged(1, "database/a", stored, {**DATABASE, "password": ""}, self.RING)
        assert isinstance(gone, dict)
        assert not {"password", *stored} & gone.keys()
        hashed: JSON = {"passwordHash": "h"}
        assert merged(1, "ftp/bob", hashed, {}, self.RING) == {
            "tenantId": 1,
            "username": "bob",
            "passwordHash": "h",
        }
        without = merged(1, "ftp/bob", hashed, {"passwordHash": ""}, self.RING)
        assert without == {"tenantId": 1, "username": "bob"}

    def test_the_same_password_is_not_sealed_again(self):
        first = merged(1, "database/a", None, {**DATABASE, "password": "pw"}, self.RING)
        again = merged(1, "database/a", first, {**DATABASE, "password": "pw"}, self.RING)
        other = merged(1, "database/a", first, {**DATABASE, "password": "pw2"}, self.RING)
        assert first == again != other
        assert isinstance(other, dict)
        assert self.RING.unseal(str(other["passwordEncrypted"])) == "pw2"
        assert "password" not in other

    def test_a_password_that_is_already_sealed_is_written_unchanged(self):
        sealed = self.RING.seal("pw")[0]
        given: dict[str, JSON] = {**DATABASE, "passwordEncrypted": sealed}
        stored: JSON = {"password": "old", "passwordKeyId": "old"}
        merged_part = merged(1, "database/a", stored, given, self.RING)
        assert isinstance(merged_part, dict)
        assert merged_part["passwordEncrypted"] == sealed
        assert "passwordKeyId" not in merged_part
        assert "password" not in merged_part

    @pytest.mark.parametrize("path", ["meta", "ftp/bob", "storage"])
    @pytest.mark.parametrize("password", ["x", 5, {"a": 1}])
    def test_only_the_password_of_a_database_is_a_secret_field(self, path: str, password: JSON):
        given: dict[str, JSON] = {"extra": {"password": password}}
        merged_part = merged(
            1, path, None, {**META, **given} if path == "meta" else given, self.RING
        )
        assert isinstance(merged_part, dict)
        assert merged_part["password"] == password

    def test_unknown_fields_stay_until_they_are_removed_explicitly(self):
        stored: JSON = {"region": "eu", "tier": 1, "uploadQuotaGb": 9}
        kept = merged(1, "storage", stored, {"extra": {"tier": 2}}, self.RING)
        assert kept == {"tenantId": 1, "region": "eu", "tier": 2}
        gone = merged(1, "storage", stored, {"extra": {"tier": None}}, self.RING)
        assert gone == {"tenantId": 1, "region": "eu"}

    def test_an_unreadable_value_is_overwritten(self):
        assert merged(1, "storage", object(), {}, self.RING) == {"tenantId": 1}


def test_common_parts_have_rules_too():
    assert checked_common("common/resolver", {"httpType": "path", "httpPathIndex": 0})
    broken: list[tuple[str, JSON, str]] = [
        ("common/resolver", {"httpType": "cookie"}, "httpType must be one of host, header"),
        ("common/resolver", {"httpHostMode": "x"}, "httpHostMode must be one of"),
        ("common/resolver", {"httpHeaderName": "X Tenant"}, "httpHeaderName must be a header"),
        ("common/resolver", {"httpPathIndex": -1}, "httpPathIndex must be between"),
        ("common/resolver", {"ftpType": "x"}, "ftpType must be one of username"),
        ("common/resolver", [], "must be a map"),
        ("common/storage-directory", {}, "has no directory"),
        ("common/storage-directory", {"dir": "x"}, "unknown field 'dir'"),
        ("common/storage-directory", {"directory": "../../etc"}, "directory must not contain .."),
        ("common/storage-directory", {"directory": "/srv/a/.."}, "directory must not contain .."),
        ("common/storage-directory", {"directory": "a\\..\\b"}, "directory must not contain .."),
        ("common/storage-directory", {"directory": " "}, "directory is empty"),
    ]
    for path, value, message in broken:
        with pytest.raises(InvalidRequest, match=message):
            checked_common(path, value)


INVISIBLE = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2065\u2800\u3164\uffa0\ufff0"
)


@pytest.mark.parametrize("letter", INVISIBLE, ids=[f"{ord(letter):04X}" for letter in INVISIBLE])
def test_a_name_has_no_invisible_characters(letter: str):
    for name in (letter, f"O{letter}ne", f"One{letter}"):
        with pytest.raises(InvalidRequest, match=rf"invisible character U\+{ord(letter):04X}"):
            checked(1, "meta", {**META, "name": name})


@pytest.mark.parametrize(
    "name", ["\ufe0f", "\ufe0fOne", "One \ufe0f", "中\ufe00\ufe00", "\U000e0100"]
)
def test_a_variation_selector_without_a_character_is_invisible(name: str):
    with pytest.raises(InvalidRequest, match=r"invisible character U\+(FE0[0F]|E0100)"):
        checked(1, "meta", {**META, "name": name})


@pytest.mark.parametrize(
    "name",
    [
        "☕\ufe0f Café",
        "1\ufe0f\u20e3 first",
        "❤\ufe0f\u200d🔥",
        "葛\U000e0100飾",
        "한국",
        "ᄒ\u1161ᆫ",
        "ខ្មែរ",
        "ᠮᠣᠩ",
    ],
)
def test_a_name_can_be_in_any_script(name: str):
    checked(1, "meta", {**META, "name": name})


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("a\u202eb", '<U+202E>b" contains the invisible character U+202E'),
        ("mail/\u3164", "contains the invisible character U+3164"),
        ("a\nb", "contains a control character"),
        ("a/../b", "must not contain"),
        ("..", "must not contain"),
        ("a/.", "must not contain"),
        (" a", "starts or ends with a space"),
        ("a/ b", "starts or ends with a space"),
        ("a" * 300 + "/" + "b" * 300, "is longer than 512 characters"),
    ],
)
def test_a_platform_key_is_validated_like_a_name(key: str, problem: str):
    with pytest.raises(InvalidRequest, match=re.escape(problem)) as refused:
        checked_common(f"platform/configs/{key}", 1)
    assert str(refused.value).startswith(("platform/configs/", '"platform/configs/'))


@pytest.mark.parametrize("key", ["mail", "mail/smtp-password", "a.b", "..a", "邮件 1", "x_Y"])
def test_any_other_platform_key_is_valid(key: str):
    assert checked_common(f"platform/configs/{key}", 1) == 1
