"""Secrets in configuration and metadata: who sees them, and how masks are handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from mooring import Instance
from mooring.masking import MASK
from mooring.model import JSON
from tests.admin import Admin
from tests.backends import OF_THE_API, usual
from tests.waiting import eventually

ECHO = "/admin/registry/services/Common%2Fecho"
ONE = f"{ECHO}/instances/10.0.0.1:80"
CONFIG: dict[str, JSON] = {
    "db_password": "hunter2",
    "limit": 5,
    "mirror": "https://u:hunter2@mirror.example",
    "smtp": {"host": "mail", "auth": "hunter2", "tries": 3},
    "lines": ["-----BEGIN PRIVATE KEY-----", "hunter2", "-----END PRIVATE KEY-----"],
    "numbered": {"1": "-----BEGIN PRIVATE KEY-----", "2": "hunter2"},
}
SHOWN: dict[str, JSON] = {
    "db_password": MASK,
    "limit": 5,
    "mirror": f"https://u:{MASK}@mirror.example",
    "smtp": {"host": "mail", "auth": MASK, "tries": 3},
    "lines": [MASK, MASK, MASK],
    "numbered": {"1": MASK, "2": MASK},
}

TOO_MUCH: list[dict[str, Any]] = [
    {"set": {f"n{n}": 1 for n in range(101)}},
    {"unset": [f"n{n}" for n in range(101)]},
    {"set": {f"n{n}": 1 for n in range(60)}, "unset": [f"m{n}" for n in range(60)]},
    {"set": {"x" * 201: 1}},
    {"unset": ["x" * 201]},
    {"set": {"": 1}},
]


@pytest.fixture(params=usual(["memory"], ["redis-7.0"], reason=OF_THE_API))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


on_redis_too = pytest.mark.parametrize("backend", ["memory", "redis-7.0"])
"""Redis stores a configuration field by field, other registries as one record."""


@pytest.fixture
async def echo(admin: Admin) -> AsyncIterator[None]:
    metadata = {"rack": "north-7", "apiToken": "hunter2", "site": "https://u:hunter2@h"}
    one = Instance("Common/echo", "10.0.0.1", 80, metadata=metadata)
    await admin.hub.registry.configure("Common/echo", set=CONFIG)
    async with admin.hub.register(one):

        def known() -> bool:
            service = admin.fleet.service("Common/echo")
            instance = service.instances.get("10.0.0.1:80") if service is not None else None
            return instance is not None and bool(instance.config.values)

        await eventually(known)
        yield


def json_of(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int) -> str:
    message: str = json_of(answer, status)["error"]["message"]
    return message


def noted(admin: Admin) -> dict[str, Any]:
    """The notes of the last write in the audit log."""
    (entry,) = admin.server.audit.read(limit=1)
    return entry.notes


async def edit(admin: Admin, change: object, as_: str = "operator") -> httpx.Response:
    return await admin.request("PATCH", f"{ECHO}/config", change, as_=as_)


async def kept(admin: Admin) -> dict[str, JSON]:
    return dict(await admin.hub.registry.config("Common/echo"))


@on_redis_too
async def test_a_configuration_is_shown_without_its_secrets(admin: Admin, echo: None):
    for role in ("viewer", "operator", "admin"):
        answer = await admin.get(f"{ECHO}/config", as_=role)
        assert json_of(answer) == SHOWN
    for path in (ECHO, f"{ECHO}/instances", ONE, "/prometheus/targets", "/admin/search?q=north-7"):
        for role in ("viewer", "admin", *(["service"] if "/instances" in path else [])):
            answer = await admin.get(path, as_=role)
            assert answer.status_code == 200
            assert "hunter2" not in answer.text
    shown = json_of(await admin.get(ONE, as_="service"))
    assert {name: shown["config"][name] for name in SHOWN} == SHOWN
    assert shown["metadata"]["rack"] == "north-7"
    assert shown["metadata"]["apiToken"] == MASK
    assert shown["metadata"]["site"] == f"https://u:{MASK}@h"
    # It cannot be guessed letter by letter.
    assert json_of(await admin.get("/admin/search?q=hunter")) == []


async def test_the_live_stream_contains_no_secret(admin: Admin, echo: None):
    async with (
        admin.client("viewer") as client,
        client.stream("GET", "/admin/events?service=Common/echo") as answer,
        asyncio.timeout(30),
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        await admin.hub.registry.configure("Common/echo", set={"db_password": "hunter3"})
        seen = ""
        async for line in lines:
            seen += line
            if "db_password" in line:
                break
        assert MASK in seen
        assert "hunter" not in seen


async def test_a_configuration_is_unmasked_for_admins_and_recorded(admin: Admin, echo: None):
    for path in (f"{ECHO}/config", f"{ONE}/config"):
        for role in ("viewer", "operator"):
            error(await admin.get(f"{path}?unmask=true", as_=role), 403)
            (entry,) = admin.server.audit.read(limit=1)
            assert (entry.role, entry.status, entry.notes) == (role, 403, {"unmask": True})
        answer = await admin.get(f"{path}?unmask=true", as_="admin")
        assert json_of(answer) == (CONFIG if path.startswith(f"{ECHO}/config") else {})
        assert answer.headers["Cache-Control"] == "no-store"
        (entry,) = admin.server.audit.read(limit=1)
        assert (entry.role, entry.status, entry.notes) == ("admin", 200, {"unmask": True})
        assert entry.service == "Common/echo"


async def test_the_registered_service_gets_its_configuration_in_clear_text(admin: Admin):
    here = "/registry/services/Common%2Fecho/instances"
    metadata = {"apiToken": "hunter2"}
    wanted = {"host": "10.0.0.9", "port": 80, "metadata": metadata}
    made = json_of(await admin.post(here, wanted, as_="service"), 201)
    await admin.hub.registry.configure("Common/echo", made["id"], set={"db_password": "hunter2"})

    async def received() -> bool:
        beat = f"{here}/{made['id']}/beat"
        answer = await admin.put(beat, {"incarnation": made["incarnation"]}, as_="service")
        return bool(json_of(answer)["config"] == {"db_password": "hunter2"})

    await eventually(received)
    # Callers need what is registered; viewers do not.
    (offered,) = json_of(await admin.get(here, as_="service"))
    assert offered["metadata"] == metadata
    (offered,) = json_of(await admin.get(here, as_="viewer"))
    assert offered["metadata"] == {"apiToken": MASK}


@on_redis_too
async def test_a_mask_that_is_sent_back_keeps_the_stored_secret(admin: Admin, echo: None):
    shown = json_of(await admin.get(f"{ECHO}/config"))
    shown["limit"] = 6
    shown["smtp"]["tries"] = 4
    after = json_of(await edit(admin, {"set": shown}))
    assert after == shown
    smtp = {"host": "mail", "auth": "hunter2", "tries": 4}
    assert await kept(admin) == {**CONFIG, "limit": 6, "smtp": smtp}
    assert "hunter2" not in str(noted(admin))
    # A mask without a stored secret is not a secret.
    for change in (
        {"new_token": MASK},
        {"mirror": f"https://u:{MASK}@evil.example"},
        {"lines": [MASK, MASK]},
        {"numbered": {"3": MASK}},
        {"cert": MASK},
    ):
        assert "masked" in error(await edit(admin, {"set": change}), 400)
    assert await kept(admin) == {**CONFIG, "limit": 6, "smtp": smtp}


async def test_the_audit_log_does_not_show_a_line_of_a_private_key(admin: Admin, echo: None):
    lines: dict[str, JSON] = {"k1": "-----BEGIN PRIVATE KEY-----", "k2": "hunter2"}
    await admin.hub.registry.configure("Common/echo", set=lines)
    for change, role in (
        ({"set": {"k2": MASK, "limit": 7}}, "operator"),
        ({"set": {"k2": "hunter3"}}, "admin"),
    ):
        json_of(await edit(admin, change, as_=role))
        assert "hunter" not in str(noted(admin))
    assert (await kept(admin))["k2"] == "hunter3"


async def test_a_mask_cannot_send_a_secret_elsewhere(admin: Admin, echo: None):
    smtp = {"host": "evil.example", "auth": MASK, "tries": 3}
    message = error(await edit(admin, {"set": {"smtp": smtp}}), 409)
    assert "smtp.auth" in message
    assert "smtp.host" in message
    assert await kept(admin) == CONFIG
    mine = {"smtp": {**smtp, "auth": "mine"}}
    error(await edit(admin, {"set": mine}), 409)  # the other secrets are kept
    json_of(await edit(admin, {"set": {**CONFIG, **mine}}))
    other = {"smtp": {**smtp, "host": "mail2", "auth": "hunter2"}}
    json_of(await edit(admin, {"set": {**CONFIG, **other}}))
    json_of(await edit(admin, {"set": {"smtp": {**smtp, "host": "mail"}}}, as_="admin"))
    assert await kept(admin) == CONFIG


async def test_a_secret_in_a_flat_configuration_cannot_be_sent_elsewhere(admin: Admin, echo: None):
    flat: dict[str, JSON] = {"dbHost": "db.corp", "dbPassword": "x"}
    json_of(await edit(admin, {"set": flat, "unset": list(CONFIG)}, as_="admin"))
    for change in (
        {"set": {"dbHost": "evil.example"}},
        {"set": {"dbHost": "evil.example", "dbPassword": MASK}},
        {"set": {"relay": "evil"}},
        {"set": {"colour": "red"}},
        {"unset": ["dbHost"]},
    ):
        message = error(await edit(admin, change), 409)
        assert message.startswith("dbPassword is kept")
    assert await kept(admin) == flat
    ordinary = {"plan": "gold", "zone": "eu.west", "weight": 2, "description": "Of db.corp, mostly"}
    json_of(await edit(admin, {"set": ordinary}))
    json_of(await edit(admin, {"set": {"dbHost": "db2.corp", "dbPassword": "y"}}))
    json_of(await edit(admin, {"set": {"dbHost": "db3.corp"}}, as_="admin"))
    json_of(await edit(admin, {"unset": ["dbPassword", "dbHost"]}))
    assert await kept(admin) == ordinary


@on_redis_too
async def test_an_instance_override_cannot_send_a_secret_of_its_service_elsewhere(
    admin: Admin, echo: None
):
    flat: dict[str, JSON] = {"dbHost": "db.corp", "dbPassword": "x"}
    json_of(await edit(admin, {"set": flat, "unset": list(CONFIG)}, as_="admin"))

    async def own(change: object, as_: str = "operator") -> httpx.Response:
        return await admin.request("PATCH", f"{ONE}/config", change, as_=as_)

    assert "dbPassword" in error(await own({"set": {"dbHost": "evil.example"}}), 409)
    json_of(await own({"set": {"limit": 3, "zone": "z.one"}}))
    # A configuration with its own secret can send it anywhere, but not the secret of the service.
    json_of(await own({"set": {"dbHost": "evil.example", "dbPassword": "mine"}}))
    assert "dbPassword" in error(await own({"unset": ["dbPassword"]}), 409)
    assert "dbPassword" in error(await own({"unset": ["dbHost"]}), 409)
    json_of(await own({"set": {"limit": 4}}))
    json_of(await own({"unset": ["dbPassword", "dbHost"]}))
    # After an admin changed the target, other changes keep it.
    json_of(await own({"set": {"dbHost": "db2.corp"}}, as_="admin"))
    json_of(await own({"set": {"limit": 5}}))
    assert "dbPassword" in error(await own({"unset": ["dbHost"]}), 409)


async def test_the_audit_log_contains_both_values(admin: Admin, echo: None):
    json_of(await admin.put(f"{ONE}/weight", {"weight": 2.5}))
    assert noted(admin) == {"before": {"weight": None}, "after": {"weight": 2.5}}
    json_of(await admin.put(f"{ONE}/weight", {"weight": None}))
    assert noted(admin) == {"before": {"weight": 2.5}, "after": {"weight": None}}
    change = {"set": {"limit": 7, "db_password": "hunter3"}, "unset": ["mirror"]}
    json_of(await edit(admin, change, as_="admin"))
    assert noted(admin) == {
        "before": {"limit": 5, "db_password": MASK, "mirror": f"https://u:{MASK}@mirror.example"},
        "after": {"limit": 7, "db_password": MASK, "mirror": None},
    }
    json_of(await admin.request("PATCH", f"{ECHO}/info", {"description": "echoes"}))
    assert noted(admin) == {"before": {"description": ""}, "after": {"description": "echoes"}}


@on_redis_too
async def test_every_changed_name_is_in_the_audit_log(admin: Admin, echo: None):
    names = [f"{n:03}{'x' * 197}" for n in range(100)]
    json_of(await edit(admin, {"set": dict.fromkeys(names, "y" * 1000)}, as_="admin"))
    notes = noted(admin)
    assert list(notes["after"]) == names
    assert list(notes["before"]) == names
    json_of(await edit(admin, {"unset": names}, as_="admin"))
    names = ["limit", *(f"n{n:02}" for n in range(99))]
    change = {"set": {name: f"{name}{'y' * 1000}" for name in names}}
    json_of(await edit(admin, change, as_="admin"))
    assert list(noted(admin)["after"]) == names
    assert str(noted(admin)["after"]["n07"]).startswith("n07")
    assert noted(admin)["before"]["limit"] in (5, "5")
    json_of(await edit(admin, {"unset": names}, as_="admin"))


async def test_an_oversized_change_is_refused(admin: Admin, echo: None):
    for change in TOO_MUCH:
        error(await edit(admin, change), 400)
    assert await kept(admin) == CONFIG
