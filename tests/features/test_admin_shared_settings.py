"""Values shared by all tenants over HTTP: validated, masked, audited, with a history."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mooring.masking import MASK
from mooring.store.contract import prefix
from tests.admin import Admin
from tests.backends import OF_THE_API, usual

COMMON, PLATFORM = "/admin/shared/common", "/admin/shared/platform"
RESOLVER, MAIL = f"{COMMON}/values/resolver", f"{PLATFORM}/values/mail"
SMTP: dict[str, Any] = {"smtp": {"host": "mx", "password": "hunter2"}, "from": "a@b.example"}


@pytest.fixture(params=usual(["memory"], ["etcd-3.5"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


KEYLESS = "what differs without a key runs without one by default"


@pytest.fixture(
    autouse=True, params=usual([True], [False], reason=KEYLESS), ids=["sealed", "plain"]
)
def sealed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("MOORING_ENCRYPTION_KEY", "k" * 32 if request.param else "")
    return bool(request.param)


with_and_without_key = pytest.mark.parametrize(
    "sealed", [True, False], ids=["sealed", "plain"], indirect=True
)
on_stores = pytest.mark.parametrize("backend", ["memory", "etcd-3.5"])


def json_of(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


async def put(admin: Admin, path: str, value: Any, status: int = 200, **named: Any) -> Any:
    return json_of(await admin.put(path, {"value": value}, **named), status)


@on_stores
async def test_a_value_is_set_shown_and_removed(admin: Admin):
    made = await put(admin, RESOLVER, {"httpType": "host"}, 201, query={"reason": "by host"})
    assert (made["tenant"], made["area"], made["version"]) == (None, "common", 1)
    (entry,) = admin.server.audit.read(limit=1)
    assert (entry.method, entry.path, entry.status) == ("PUT", RESOLVER, 201)
    assert (entry.notes["key"], entry.notes["reason"]) == ("resolver", "by host")
    shown = json_of(await admin.get(COMMON))
    assert shown["values"] == {"resolver": {"httpType": "host"}}
    assert shown["lastPublish"]
    assert (await put(admin, RESOLVER, {"httpType": "host"}))["version"] is None
    changes = json_of(await admin.post(f"{RESOLVER}/diff", {"value": {"httpType": "header"}}))
    assert [change["path"] for change in changes["changes"]] == ["common/resolver"]
    nested = f"{PLATFORM}/values/themes%2Fdark"
    await put(admin, nested, [1, 2], 201)
    assert json_of(await admin.get(PLATFORM))["values"] == {"themes/dark": [1, 2]}
    assert json_of(await admin.delete(nested))["changes"][0]["action"] == "remove"
    error(await admin.delete(nested), 404)
    assert json_of(await admin.get(PLATFORM))["values"] == {}


async def test_invalid_values_are_refused(admin: Admin):
    assert "did you mean 'httpType'" in error(
        await admin.put(RESOLVER, {"value": {"htpType": "host"}}), 400
    )
    assert "resolver" in error(await admin.put(f"{COMMON}/values/other", {"value": {}}), 404)
    error(await admin.put(f"{PLATFORM}/values/%2Fa", {"value": {}}), 400)
    error(await admin.put(MAIL, {"value": None}), 400)
    assert "masked" in error(await admin.put(MAIL, {"value": {"password": MASK}}), 400)
    error(await admin.get("/admin/shared/else"), 404)
    error(await admin.put(f"{PLATFORM}/values/a", {"valeu": 1}), 400)
    assert json_of(await admin.get(f"{PLATFORM}/history")) == []


@with_and_without_key
async def test_secrets_are_masked_and_kept(admin: Admin):
    made = await admin.put(MAIL, {"value": SMTP})
    shown = await admin.get(PLATFORM)
    version = await admin.get(f"{PLATFORM}/history/1")
    for answer in (made, shown, version):
        assert "hunter2" not in answer.text
    value = shown.json()["values"]["mail"]
    assert value["smtp"]["password"] == MASK
    value["from"] = "c@d.example"
    assert "mail.from changes" in error(await admin.put(MAIL, {"value": value}), 409)
    assert (await put(admin, MAIL, value, as_="admin"))["version"] == 2
    error(await admin.get(f"{PLATFORM}?unmask=true", as_="operator"), 403)
    opened = json_of(await admin.get(f"{PLATFORM}?unmask=true", as_="admin"))["values"]["mail"]
    assert opened == {**SMTP, "from": "c@d.example"}
    value["smtp"]["host"] = "evil"
    for answer in (
        await admin.put(MAIL, {"value": value}),
        await admin.post(f"{MAIL}/diff", {"value": value}),
    ):
        assert "smtp.password is kept" in error(answer, 409)


@with_and_without_key
async def test_a_diff_does_not_reveal_whether_a_guess_of_a_secret_is_right(admin: Admin):
    await put(admin, MAIL, SMTP, 201, as_="admin")
    answers = []
    for guess in ("hunter2", "wrong"):
        value = {**SMTP, "smtp": {"host": "mx", "password": guess}}
        answers.append((await admin.post(f"{MAIL}/diff", {"value": value})).json())
        (entry,) = admin.server.audit.read(limit=1)
        assert (entry.path, entry.status) == (f"{MAIL}/diff", 200)
    assert answers[0] == answers[1]
    assert answers[0]["changes"][0]["sensitive"] == ["smtp.password"]


@with_and_without_key
@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"host": "mx", "value": "hunter2"}])
async def test_the_value_of_a_key_with_the_name_of_a_secret_is_secret(
    admin: Admin, sealed: bool, value: Any
):
    path = f"{PLATFORM}/values/mail%2Fsmtp-password"
    answers = [
        await admin.put(path, {"value": value}, as_="admin"),
        await admin.get(PLATFORM, as_="viewer"),
        await admin.get(f"{PLATFORM}/history/1", as_="viewer"),
        await admin.post(f"{path}/diff", {"value": "other"}),
        await admin.put(path, {"value": MASK}),
        await admin.put(path, {"value": "other"}),
        await admin.get(f"{PLATFORM}/history/2"),
        await admin.post(f"{PLATFORM}/rollback", {"version": 1, "dry": True}),
        await admin.post(f"{PLATFORM}/rollback", {"version": 1}),
        await admin.delete(path),
        await admin.get(f"{PLATFORM}/history/4"),
    ]
    for answer in answers:
        assert answer.status_code < 300, answer.text
        assert "hunter2" not in answer.text
        assert "other" not in answer.text
    assert answers[1].json()["values"] == {"mail/smtp-password": MASK}
    assert answers[2].json()["changes"][0]["sensitive"] == [""]
    assert answers[4].json()["changes"] == []
    stored = await admin.server.hub.store.read(prefix(b"jxt/_history/"))
    assert not any(b"hunter2" in entry.value for entry in stored.entries)
    await admin.post(f"{PLATFORM}/rollback", {"version": 1})
    opened = json_of(await admin.get(f"{PLATFORM}?unmask=true", as_="admin"))["values"]
    assert opened == ({"mail/smtp-password": value} if sealed else {})
    absent = f"{PLATFORM}/values/api-token"
    assert "masked" in error(await admin.put(absent, {"value": MASK}), 400)


@with_and_without_key
@pytest.mark.parametrize(
    ("key", "right", "guess"),
    [
        ("smtp-password", "hunter2", "wrong"),
        ("smtp-password", {"host": "mx", "pin": "1"}, {"host": "mx2", "pin": "1"}),
        (
            "smtp-password",
            {"host": "mx", "password": MASK, "pin": "1"},
            {"host": "evil", "password": MASK, "pin": "1"},
        ),
        ("proxy", "https://u:hunter2@h", "https://u:wrong@h"),
        ("hooks", ["https://u:hunter2@h"], ["https://u:wrong@h"]),
    ],
)
async def test_a_diff_does_not_reveal_whether_a_guess_of_a_complete_value_is_right(
    admin: Admin, key: str, right: Any, guess: Any
):
    path = f"{PLATFORM}/values/{key}"
    held = {**right, "password": "hunter2"} if isinstance(right, dict) else right
    await put(admin, path, held, 201, as_="admin")
    compared = [await admin.post(f"{path}/diff", {"value": guessed}) for guessed in (right, guess)]
    assert compared[0].text == compared[1].text
    masked_within = isinstance(right, dict) and MASK in right.values()
    assert compared[0].status_code == (400 if masked_within else 200)
    assert "hunter2" not in compared[0].text
    if not masked_within:
        assert compared[0].json()["changes"][0]["sensitive"] == [""]


@on_stores
async def test_history_is_shown_and_rolled_back_to(admin: Admin):
    await put(admin, MAIL, {"host": "a"}, 201)
    await put(admin, MAIL, {"host": "b"}, query={"reason": "moved"})
    listed = json_of(await admin.get(f"{PLATFORM}/history"))
    assert [(version["version"], version["note"], version["paths"]) for version in listed] == [
        (1, None, ["platform/configs/mail"]),
        (2, "moved", ["platform/configs/mail"]),
    ]
    (change,) = json_of(await admin.get(f"{PLATFORM}/history/2"))["changes"]
    assert (change["before"], change["after"]) == ({"host": "a"}, {"host": "b"})
    dry = json_of(await admin.post(f"{PLATFORM}/rollback", {"version": 1, "dry": True}))
    assert dry["changes"][0]["after"] == {"host": "a"}
    assert json_of(await admin.post(f"{PLATFORM}/rollback", {"version": 1}))["version"] == 3
    assert json_of(await admin.get(PLATFORM))["values"] == {"mail": {"host": "a"}}
    error(await admin.post(f"{PLATFORM}/rollback", {"version": 9}), 404)
    error(await admin.get(f"{PLATFORM}/history/9"), 404)


@on_stores
async def test_concurrent_edits_do_not_overwrite_each_other(admin: Admin):
    absent = {"If-None-Match": "*"}
    await put(admin, MAIL, 1, 201, headers=absent)
    assert "already exists" in error(await admin.put(MAIL, {"value": 2}, headers=absent), 412)
    answer = await admin.get(PLATFORM)
    etag, base = answer.headers["ETag"], answer.json()["revision"]
    await put(admin, MAIL, 2, headers={"If-Match": etag})
    error(await admin.put(MAIL, {"value": 3}, headers={"If-Match": etag}), 412)
    error(await admin.put(MAIL, {"value": 3}, query={"base": base}), 409)
    error(await admin.delete(MAIL, headers={"If-Match": etag}), 412)
    error(await admin.post(f"{PLATFORM}/rollback", {"version": 1, "base": base}), 409)
    assert json_of(await admin.get(PLATFORM))["values"] == {"mail": 2}


async def test_shared_values_require_a_role_without_a_scope(admin: Admin):
    scoped = await admin.token("operator", tenants=[7])
    value = {"value": {"httpType": "host"}}
    for path in (COMMON, f"{COMMON}/history"):
        assert (await admin.get(path)).status_code == 200
        error(await admin.get(path, as_=scoped), 403)
        assert (await admin.get(path, as_=None)).status_code == 401
    for method, path, body in (
        ("PUT", RESOLVER, value),
        ("POST", f"{RESOLVER}/diff", value),
        ("DELETE", RESOLVER, None),
        ("POST", f"{COMMON}/rollback", {"version": 1}),
        ("POST", "/admin/shared/health", None),
        ("DELETE", "/admin/shared/health", None),
    ):
        for role in ("viewer", "service", scoped):
            error(await admin.request(method, path, body, as_=role), 403)


@on_stores
async def test_the_health_sentinel_is_removed(admin: Admin):
    error(await admin.delete("/admin/shared/health"), 404)
    await admin.post("/admin/shared/health")
    assert json_of(await admin.delete("/admin/shared/health")) == {"lastPublish": None}
    (entry,) = admin.server.audit.read(limit=1)
    assert (entry.method, entry.path, entry.status) == ("DELETE", "/admin/shared/health", 200)
    assert json_of(await admin.get(COMMON))["lastPublish"] is None
    assert json_of(await admin.get(f"{COMMON}/history")) == []


@on_stores
async def test_the_health_sentinel_is_written(admin: Admin):
    assert json_of(await admin.get(COMMON))["lastPublish"] is None
    at = json_of(await admin.post("/admin/shared/health"))["lastPublish"]
    assert at == json_of(await admin.get(COMMON))["lastPublish"]
