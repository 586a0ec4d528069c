"""Tenants over HTTP: published, shown with masked secrets, compared, rolled back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring.masking import MASK
from mooring.store.contract import Put, prefix
from mooring.tenants.keys import TenantKeys
from tests.admin import Admin
from tests.backends import OF_THE_API, usual

ACME: dict[str, Any] = {
    "meta": {"code": "acme", "name": "Acme Ltd", "billingPlan": "pro"},
    "domain": {"primary": "acme.example", "aliases": ["www.acme.example"]},
    "database": {
        "orders": {
            "driver": "mysql",
            "host": "db1",
            "port": 3306,
            "database": "orders",
            "username": "u",
            "password": "hunter2",
            "extra": {"smtp": {"host": "mail", "password": "s3cret"}, "tier": "gold"},
        }
    },
    "ftp": {"acme_ftp": {"passwordHash": "$2a$10$hash", "homeDirectory": "/acme"}},
    "storage": {"uploadQuotaGb": 10},
}
SECRETS = ("hunter2", "s3cret", "$2a$10$hash")
ONE = "/admin/tenants/7"


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


async def publish(admin: Admin, document: dict[str, Any], status: int = 200, **named: Any) -> Any:
    return json_of(await admin.put(ONE, document, **named), status)


async def stored(admin: Admin) -> dict[str, Any]:
    return dict(await admin.hub.publisher().read(7))


@with_and_without_key
@on_stores
async def test_a_tenant_is_published_and_shown_without_its_secrets(admin: Admin):
    made = await publish(admin, ACME, 201, query={"reason": "new customer"})
    assert (made["tenant"], made["version"], made["transactions"]) == (7, 1, 1)
    answer = await admin.get(ONE)
    shown = json_of(answer)
    assert shown["document"]["id"] == 7
    assert shown["problems"] == []
    database = shown["document"]["database"]["orders"]
    assert database["password"] == MASK
    assert database["extra"] == {"tier": "gold", "smtp": {"host": "mail", "password": MASK}}
    assert shown["document"]["ftp"]["acme_ftp"]["passwordHash"] == MASK
    told_of = (await admin.get(f"{ONE}/history/1")).text + str(made) + answer.text
    assert not [secret for secret in SECRETS if secret in told_of]
    same = await admin.get(ONE, headers={"If-None-Match": answer.headers["ETag"]})
    assert same.status_code == 304
    (entry,) = admin.server.audit.read(limit=1)
    assert (entry.tenant, entry.notes["reason"], entry.notes["version"]) == ("7", "new customer", 1)
    assert not [secret for secret in SECRETS if secret in str(entry)]


@with_and_without_key
async def test_a_shown_document_can_be_sent_back_and_keeps_every_secret(admin: Admin):
    await publish(admin, ACME, 201)
    before = await stored(admin)
    document = json_of(await admin.get(ONE))["document"]
    assert json_of(await admin.post(f"{ONE}/diff", document))["changes"] == []
    assert (await publish(admin, document))["version"] is None
    assert await stored(admin) == before
    document["database"]["orders"]["username"] = "v"
    document["database"]["orders"]["extra"]["tier"] = "silver"
    document["meta"]["name"] = "Acme Inc"
    error(await admin.post(f"{ONE}/diff", document), 409)
    would = json_of(await admin.post(f"{ONE}/diff", document, as_="admin"))["changes"]
    assert [(change["path"], change["action"]) for change in would] == [
        ("meta", "change"),
        ("database/orders", "change"),
    ]
    assert (await publish(admin, document, as_="admin"))["changes"] == would
    after = await stored(admin)
    old, new = before["database/orders"], after["database/orders"]
    assert (new["username"], new["tier"], new["smtp"]) == ("v", "silver", old["smtp"])
    for field in ("password", "passwordEncrypted", "passwordKeyId"):
        assert new.get(field) == old.get(field)
    assert after["ftp/acme_ftp"] == before["ftp/acme_ftp"]
    # A mask without a stored secret is not a secret.
    document["database"]["billing"] = {**document["database"]["orders"], "extra": {"token": MASK}}
    assert "masked" in error(await admin.put(ONE, document), 400)


@with_and_without_key
@pytest.mark.parametrize(
    ("field", "value"), [("host", "evil"), ("port", 1), ("driver", "x"), ("sslMode", "disable")]
)
async def test_a_password_that_is_not_restated_cannot_be_sent_elsewhere(
    admin: Admin, field: str, value: object
):
    await publish(admin, ACME, 201)
    before = await stored(admin)
    orders = json_of(await admin.get(ONE))["document"]["database"]["orders"]
    orders[field] = value
    without = {name: inner for name, inner in orders.items() if name != "password"}
    for database in (orders, without, {**orders, "password": None}):
        document = {"database": {"orders": database}}
        for answer in (await admin.put(ONE, document), await admin.post(f"{ONE}/diff", document)):
            message = error(answer, 409)
            assert f"database/orders.{field} changes" in message
            assert "hunter2" not in message
            (entry,) = admin.server.audit.read(limit=1)
            assert (entry.status, entry.tenant) == (409, "7")
    assert await stored(admin) == before
    # Restating the password allows it, and so does the right to see it.
    restated = {**orders, "password": "mine", "extra": ACME["database"]["orders"]["extra"]}
    await publish(admin, {"database": {"orders": restated}})
    await publish(
        admin,
        {"database": {"orders": {**orders, field: ACME["database"]["orders"].get(field)}}},
        as_="admin",
    )
    document = json_of(await admin.get(f"{ONE}?unmask=true", as_="admin"))["document"]
    assert document["database"]["orders"]["password"] == "mine"


async def test_a_secret_of_another_name_cannot_be_sent_elsewhere(admin: Admin):
    await publish(admin, ACME, 201)
    orders = json_of(await admin.get(ONE))["document"]["database"]["orders"]
    orders["extra"]["smtp"]["host"] = "evil"
    assert "smtp.password" in error(await admin.put(ONE, {"database": {"orders": orders}}), 409)
    orders["extra"]["smtp"]["password"] = "mine"
    orders["password"] = "hunter2"
    await publish(admin, {"database": {"orders": orders}})


@with_and_without_key
async def test_a_rollback_without_the_secret_cannot_send_it_elsewhere(admin: Admin, sealed: bool):
    orders = {**ACME["database"]["orders"], "extra": {}}
    await publish(admin, {"database": {"orders": {**orders, "host": "evil", "password": "j"}}}, 201)
    await publish(admin, {"database": {"orders": orders}})
    back = await admin.post(f"{ONE}/rollback", {"version": 1})
    if sealed:  # the history contains the former password
        assert json_of(back)["version"] == 3
        return
    assert "database/orders.host changes" in error(back, 409)
    error(await admin.post(f"{ONE}/rollback", {"version": 1, "dry": True}), 409)
    assert json_of(await admin.post(f"{ONE}/rollback", {"version": 1}, as_="admin"))["version"] == 3


@with_and_without_key
async def test_values_that_may_contain_a_secret_are_masked(admin: Admin):
    extra = {
        "dsn": "mysql://u:s3cret@h/x",
        "url": "https://u:s3cret@h",
        "auth": "s3cret",
        "connectionString": "Server=h;Password=s3cret",
        "note": "host=h password=s3cret",
    }
    database = {**ACME["database"]["orders"], "extra": extra}
    made = await admin.put(ONE, {"database": {"orders": database}})
    json_of(made, 201)
    shown = await admin.get(ONE)
    version = await admin.get(f"{ONE}/history/1")
    for answer in (made, shown, version):
        assert "s3cret" not in answer.text
        assert "hunter2" not in answer.text
    assert json_of(shown)["document"]["database"]["orders"]["extra"]["url"] == f"https://u:{MASK}@h"
    before = await stored(admin)
    await publish(admin, json_of(shown)["document"])
    assert await stored(admin) == before
    clear = json_of(await admin.get(f"{ONE}?unmask=true", as_="admin"))["document"]
    assert clear["database"]["orders"]["extra"] == extra


async def test_the_holder_of_a_taken_name_is_shown_only_within_the_scope(admin: Admin):
    await publish(admin, ACME, 201)
    mine, both = (
        await admin.token("operator", tenants=[8]),
        await admin.token("operator", tenants=[7, 8]),
    )
    for section in (
        {"domain": {"primary": "acme.example"}},
        {"meta": {"code": "acme", "name": "x"}},
    ):
        document = {"meta": {"code": "other", "name": "Other"}, **section}
        for method, path in (("PUT", "/admin/tenants/8"), ("POST", "/admin/tenants/8/diff")):
            message = error(await admin.request(method, path, document, as_=mine), 409)
            assert "is already taken" in message
            assert "7" not in message
            (entry,) = admin.server.audit.read(limit=1)
            assert (entry.path, entry.status) == (path, 409)
            message = error(await admin.request(method, path, document, as_=both), 409)
            assert "belongs to tenant 7" in message


@with_and_without_key
async def test_secrets_are_shown_to_admins_and_that_is_recorded(admin: Admin):
    await publish(admin, ACME, 201)
    for role in ("viewer", "operator"):
        error(await admin.get(f"{ONE}?unmask=true", as_=role), 403)
        (entry,) = admin.server.audit.read(limit=1)
        assert (entry.role, entry.status, entry.notes) == (role, 403, {"unmask": True})
    answer = await admin.get(f"{ONE}?unmask=true", as_="admin")
    document = json_of(answer)["document"]
    assert document["database"]["orders"]["password"] == "hunter2"
    assert document["database"]["orders"]["extra"]["smtp"]["password"] == "s3cret"
    assert document["ftp"]["acme_ftp"]["passwordHash"] == "$2a$10$hash"
    assert answer.headers["Cache-Control"] == "no-store"
    (entry,) = admin.server.audit.read(limit=1)
    assert (entry.role, entry.status, entry.notes) == ("admin", 200, {"unmask": True})


@with_and_without_key
async def test_a_secret_with_an_unknown_key_stays_masked(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, sealed: bool
):
    await publish(admin, ACME, 201)
    monkeypatch.setenv("MOORING_ENCRYPTION_KEY", "j" * 32)
    shown = json_of(await admin.get(f"{ONE}?unmask=true", as_="admin"))
    password = shown["document"]["database"]["orders"]["password"]
    assert password == (MASK if sealed else "hunter2")
    assert bool(shown["problems"]) is sealed


# A guess of each secret: its place in a document, and the guess that is right.
GUESSES: list[tuple[str, dict[str, Any], str]] = [
    ("password", {"password": "hunter2"}, "guess"),
    ("smtp.password", {"extra": {"smtp": {"host": "mail", "password": "s3cret"}}}, "guess"),
    ("credentials", {"extra": {"credentials": {"user": "root", "pin": "s3cret"}}}, "guess"),
    ("note", {"extra": {"note": "see https://u:s3cret@h"}}, "see https://u:guess@h"),
    ("dsn", {"extra": {"dsn": "mysql://u:s3cret@h/x"}}, "mysql://u:guess@h/x"),
]
SECRET_DATABASE = {
    **{name: value for name, value in ACME["database"]["orders"].items() if name != "extra"},
    "extra": {
        name: value for _, part, _ in GUESSES for name, value in part.get("extra", {}).items()
    },
}


def wrong(document: Any, guess: str) -> Any:
    """The same document with another secret."""
    if isinstance(document, dict):
        return {
            name: inner if name in ("host", "user") else wrong(inner, guess)
            for name, inner in document.items()
        }
    return guess


@with_and_without_key
@pytest.mark.parametrize(("field", "right", "guess"), GUESSES, ids=[guess[0] for guess in GUESSES])
async def test_no_view_reveals_whether_a_guess_of_a_secret_is_right(
    admin: Admin, field: str, right: dict[str, Any], guess: str
):
    json_of(await admin.put(ONE, {"database": {"orders": SECRET_DATABASE}}, as_="admin"), 201)
    shown = json_of(await admin.get(ONE))["document"]["database"]["orders"]

    def document(part: dict[str, Any]) -> dict[str, Any]:
        extra = {**shown["extra"], **part.get("extra", {})}
        return {"database": {"orders": {**shown, **part, "extra": extra}}}

    guesses = [document(right), document(wrong(right, guess))]
    compared = [await admin.post(f"{ONE}/diff", guessed) for guessed in guesses]
    assert compared[0].status_code == compared[1].status_code
    assert compared[0].text == compared[1].text
    (entry,) = admin.server.audit.read(limit=1)
    assert (entry.method, entry.path, entry.status) == (
        "POST",
        f"{ONE}/diff",
        compared[0].status_code,
    )
    if field in ("credentials", "dsn", "note"):  # the others are kept, and may belong to these
        error(compared[0], 409)
        return
    (change,) = compared[0].json()["changes"]
    assert change["sensitive"] == [field]
    # An admin, who may see the secret, gets the difference.
    assert json_of(await admin.post(f"{ONE}/diff", guesses[0], as_="admin"))["changes"] == []
    # Nor does publishing it, the history, or a rollback.
    answers: list[list[Any]] = []
    for guessed in guesses:
        published = json_of(await admin.put(ONE, guessed))
        version = published["version"]
        assert version
        entry_of = json_of(await admin.get(f"{ONE}/history/{version}"))["changes"]
        back = {"version": version - 1}
        dry = json_of(await admin.post(f"{ONE}/rollback", {**back, "dry": True}))["changes"]
        undone = json_of(await admin.post(f"{ONE}/rollback", back))
        assert undone["version"] == version + 1
        answers.append([published["changes"], entry_of, dry, undone["changes"], undone["lost"]])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("beside", [True, False], ids=["beside-encrypted", "alone"])
async def test_a_server_without_a_key_does_not_reveal_whether_a_guessed_password_is_right(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, beside: bool
):
    monkeypatch.setenv("MOORING_ENCRYPTION_KEY", "")
    database = {**ACME["database"]["orders"], "extra": {}}
    json_of(await admin.put(ONE, {"database": {"orders": database}}, as_="admin"), 201)
    if beside:
        value = b'{"driver":"mysql","passwordEncrypted":"c2VhbGVk"}'
        await admin.server.hub.store.commit(Put(TenantKeys().part(8, "database/query"), value))
    guesses = [
        {"database": {"orders": {**database, "password": guess}}}
        for guess in ("hunter2", "wrong!!")
    ]
    compared = [await admin.post(f"{ONE}/diff", guessed) for guessed in guesses]
    assert compared[0].text == compared[1].text
    assert [answer.status_code for answer in compared] == [400 if beside else 200] * 2
    published = [await admin.put(ONE, guessed) for guessed in guesses]
    assert published[0].status_code == published[1].status_code == (400 if beside else 200)
    if beside:
        assert published[0].text == published[1].text
        assert "clear text" in error(published[0], 400)
        # An admin may see the password, and changes nothing by sending it again.
        assert json_of(await admin.put(ONE, guesses[0], as_="admin"))["changes"] == []
    else:
        right, wrong_one = (answer.json() for answer in published)
        assert right.pop("version") + 1 == wrong_one.pop("version")
        assert right == wrong_one
        assert "clear text" in right["warnings"][0]["text"]


@on_stores
async def test_a_creation_can_require_that_there_is_no_tenant(admin: Admin):
    absent = {"If-None-Match": "*"}
    await publish(admin, ACME, 201, headers=absent)
    other = {"meta": {"code": "other", "name": "Other"}}
    assert "already exists" in error(await admin.put(ONE, other, headers=absent), 412)
    assert (await stored(admin))["meta"]["code"] == "acme"
    racing = [
        admin.put(
            f"/admin/tenants/{8}", {"meta": {"code": f"c{n}", "name": f"N{n}"}}, headers=absent
        )
        for n in range(5)
    ]
    statuses = sorted(answer.status_code for answer in await asyncio.gather(*racing))
    assert statuses == [201, 412, 412, 412, 412]


@on_stores
async def test_rollback_and_delete_can_require_the_seen_revision(admin: Admin):
    await publish(admin, ACME, 201)
    answer = await admin.get(ONE)
    etag, base = answer.headers["ETag"], answer.json()["revision"]
    await publish(admin, {"storage": {"uploadQuotaGb": 20}})
    back: dict[str, Any] = {"version": 1}
    assert "changed since" in error(
        await admin.post(f"{ONE}/rollback", back, headers={"If-Match": etag}), 412
    )
    error(await admin.post(f"{ONE}/rollback", {**back, "base": base}), 409)
    error(await admin.delete(ONE, headers={"If-Match": etag}), 412)
    error(await admin.delete(f"{ONE}?base={base}"), 409)
    assert (await stored(admin))["storage"]["uploadQuotaGb"] == 20
    fresh = json_of(await admin.get(ONE))["revision"]
    assert json_of(await admin.post(f"{ONE}/rollback", {**back, "base": fresh}))["version"] == 3
    etag = (await admin.get(ONE)).headers["ETag"]
    assert json_of(await admin.delete(ONE, headers={"If-Match": etag}))["version"] == 4
    # A deleted tenant is restored only if it is still deleted.
    absent = {"If-None-Match": "*"}
    json_of(await admin.post(f"{ONE}/rollback", {"version": 3}, headers=absent))
    error(await admin.post(f"{ONE}/rollback", {"version": 3}, headers=absent), 412)


@on_stores
async def test_concurrent_edits_do_not_overwrite_each_other(admin: Admin):
    await publish(admin, ACME, 201)
    answer = await admin.get(ONE)
    etag, base = answer.headers["ETag"], answer.json()["revision"]
    one = {"meta": {"code": "acme", "name": "One"}}
    other = {"meta": {"code": "acme", "name": "Other"}}
    await publish(admin, one, headers={"If-Match": etag})
    assert "changed since" in error(await admin.put(ONE, other, headers={"If-Match": etag}), 412)
    assert "changed since" in error(await admin.put(ONE, other, query={"base": base}), 409)
    fresh = json_of(await admin.get(ONE))["revision"]
    await publish(admin, other, query={"base": fresh})
    await publish(admin, one, headers={"If-Match": "*"})
    missing = await admin.put("/admin/tenants/8", one, headers={"If-Match": "*"})
    assert missing.status_code == 412


@on_stores
async def test_history_is_shown_and_rolled_back_to(admin: Admin):
    await publish(admin, ACME, 201)
    await publish(admin, {"storage": {"uploadQuotaGb": 20}}, query={"reason": "more room"})
    await publish(admin, {"storage": None})
    listed = json_of(await admin.get(f"{ONE}/history"))
    assert [version["version"] for version in listed] == [1, 2, 3]
    assert (listed[1]["note"], listed[1]["by"], listed[1]["paths"]) == (
        "more room",
        "a-operator",
        ["storage"],
    )
    page = await admin.get(f"{ONE}/history?limit=2")
    assert [version["version"] for version in page.json()] == [1, 2]
    rest = await admin.get(page.links["next"]["url"])
    assert [version["version"] for version in rest.json()] == [3]
    (change,) = json_of(await admin.get(f"{ONE}/history/2"))["changes"]
    assert (change["before"]["uploadQuotaGb"], change["after"]["uploadQuotaGb"]) == (10, 20)
    for missing in ("9", "x", "02"):
        error(await admin.get(f"{ONE}/history/{missing}"), 404)

    dry = json_of(await admin.post(f"{ONE}/rollback", {"version": 2, "dry": True}))
    assert [change["action"] for change in dry["changes"]] == ["add"]
    assert "storage" not in await stored(admin)
    back = json_of(await admin.post(f"{ONE}/rollback", {"version": 2, "note": "a mistake"}))
    assert back["version"] == 4
    assert (await stored(admin))["storage"]["uploadQuotaGb"] == 20
    error(await admin.post(f"{ONE}/rollback", {"version": 40}), 404)
    error(await admin.post(f"{ONE}/rollback", {"version": -1}), 400)

    gone = json_of(await admin.delete(f"{ONE}?reason=left"))
    assert {change["action"] for change in gone["changes"]} == {"remove"}
    error(await admin.get(ONE), 404)
    error(await admin.delete(ONE), 404)
    assert [version["version"] for version in json_of(await admin.get(f"{ONE}/history"))][-1] == 5
    error(await admin.get("/admin/tenants/8/history"), 404)


@on_stores
async def test_tenants_are_listed_by_page_and_filter(admin: Admin):
    for id in (2, 10, 7):
        document = {"meta": {"code": f"c{id}", "name": f"Shop {id}"}}
        document["domain"] = {"primary": f"shop{id}.example"}
        json_of(await admin.put(f"/admin/tenants/{id}", document), 201)
    listed = json_of(await admin.get("/admin/tenants"))
    assert [tenant["id"] for tenant in listed] == [2, 7, 10]
    assert listed[0] == {
        "id": 2,
        "code": "c2",
        "name": "Shop 2",
        "status": "active",
        "primaryDomain": "shop2.example",
        "hosts": ["shop2.example"],
        "databases": 0,
        "ftpUsers": 0,
        "problems": 0,
    }
    page = await admin.get("/admin/tenants?limit=2")
    assert [tenant["id"] for tenant in page.json()] == [2, 7]
    assert page.headers["X-Total-Count"] == "3"
    rest = await admin.get(page.links["next"]["url"])
    assert [tenant["id"] for tenant in rest.json()] == [10]
    assert [tenant["id"] for tenant in json_of(await admin.get("/admin/tenants?after=7"))] == [10]
    assert [tenant["id"] for tenant in json_of(await admin.get("/admin/tenants?name=SHOP+1"))] == [
        10
    ]
    assert [tenant["id"] for tenant in json_of(await admin.get("/admin/tenants?code=c7"))] == [7]
    assert json_of(await admin.get("/admin/tenants?status=suspended")) == []

    (hit,) = json_of(await admin.get("/admin/search?q=shop7.example"))
    assert (hit["kind"], hit["tenant"], hit["field"], hit["match"]) == (
        "tenant",
        7,
        "host",
        "exact",
    )
    assert hit["path"] == ONE
    scoped = await admin.token("operator", tenants=[7])
    assert [tenant["id"] for tenant in json_of(await admin.get("/admin/tenants", as_=scoped))] == [
        7
    ]
    hits = json_of(await admin.get("/admin/search?q=shop", as_=scoped))
    assert [hit["tenant"] for hit in hits] == [7]
    assert (await admin.get(ONE, as_=scoped)).status_code == 200
    for method in ("GET", "DELETE"):
        error(await admin.request(method, "/admin/tenants/2", as_=scoped), 403)
    error(await admin.put("/admin/tenants/2", {}, as_=scoped), 403)
    error(await admin.get("/admin/tenants/2/history", as_=scoped), 403)
    error(await admin.get(ONE, as_=await admin.token("viewer", groups=["Common"])), 403)


async def test_invalid_requests_are_explained(admin: Admin):
    await publish(admin, ACME, 201)
    assert "'code'" in error(await admin.put(ONE, {"meta": {"cod": "x"}}), 400)
    assert "unknown field" in error(await admin.put(ONE, {"metta": {}}), 400)
    assert "tenant 8" in error(await admin.put(ONE, {"id": 8}), 400)
    taken = {"meta": {"code": "ACME", "name": "Other"}}
    assert "tenant 7" in error(await admin.put("/admin/tenants/8", taken), 409)
    error(await admin.put("/admin/tenants/0", taken), 400)
    error(await admin.get("/admin/tenants/x"), 400)
    error(await admin.put(ONE, {}, as_="viewer"), 403)
    error(await admin.post(f"{ONE}/diff", {}, as_="viewer"), 403)
    error(await admin.post(f"{ONE}/rollback", {"version": 1}, as_="viewer"), 403)


async def test_an_empty_document_creates_no_tenant(admin: Admin):
    made = json_of(await admin.put(ONE, {}))
    assert (made["version"], made["changes"]) == (None, [])
    error(await admin.get(ONE), 404)


async def test_an_unreadable_part_is_reported_and_hides_nothing_else(admin: Admin):
    await publish(admin, ACME, 201)
    await admin.hub.store.commit(Put(TenantKeys().part(7, "storage"), b"{oops"))
    shown = json_of(await admin.get(ONE))
    assert shown["document"]["meta"]["code"] == "acme"
    (problem,) = shown["problems"]
    assert (problem["kind"], problem["params"]) == ("part_unreadable", {"path": "storage"})
    assert problem["text"].startswith("storage cannot be parsed and is omitted")


@on_stores
async def test_the_configured_namespace_is_used(store_url: str, tmp_path: Path):
    async with Admin(store_url, folder=tmp_path, tenants_namespace="acme/prod") as admin:
        await publish(admin, ACME, 201)
        assert (await admin.hub.store.read(prefix(b"acme/prod/tenants/7/"))).entries
        assert not (await admin.hub.store.read(prefix(b"jxt/"))).entries
        assert json_of(await admin.get(ONE))["document"]["meta"]["code"] == "acme"
        assert [tenant["id"] for tenant in json_of(await admin.get("/admin/tenants"))] == [7]
        assert [hit["tenant"] for hit in json_of(await admin.get("/admin/search?q=acme"))] == [7]
        assert [version["version"] for version in json_of(await admin.get(f"{ONE}/history"))] == [1]
