"""What users do in the console, in a real Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from mooring.errors import LockLost
from mooring.model import Instance
from mooring.testing.etcd import EtcdServer
from mooring.testing.proxy import FaultProxy
from tests.acceptance.console.visitor import PATIENCE, Visitor
from tests.admin import Admin
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

expect.set_options(timeout=PATIENCE)

AUTH = "Common/Auth"


@contextlib.asynccontextmanager
async def registered(admin: Admin, *names: str) -> AsyncIterator[list[str]]:
    """Register an instance of each service; yields their ids."""
    async with contextlib.AsyncExitStack() as opened:
        ids = []
        for number, name in enumerate(names):
            instance = Instance(name, "10.0.0.1", 8000 + number, protocol="http", version="1.2.3")
            registration = await opened.enter_async_context(admin.hub.register(instance))
            ids.append(registration.instance.id)
            await admin.sees(name, ids[-1])
        yield ids


@contextlib.asynccontextmanager
async def holding(admin: Admin, lock: str) -> AsyncIterator[asyncio.Task[None]]:
    """A task that holds a lock, or waits in its queue, until it is lost."""
    contenders = sum(
        len(queue.holders) + len(queue.waiting) for queue in await admin.hub.locks(lock)
    )

    async def hold() -> None:
        async with admin.hub.lock(lock):
            await asyncio.Event().wait()

    async def queued() -> bool:
        queues = await admin.hub.locks(lock)
        return sum(len(queue.holders) + len(queue.waiting) for queue in queues) > contenders

    holder = asyncio.create_task(hold())
    try:
        await eventually(queued)
        yield holder
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)


async def test_a_link_logs_in_and_a_search_finds_a_service(visitor: Visitor, admin: Admin):
    async with registered(admin, AUTH, "Orders/Invoice", "mailer"):
        page = visitor.page
        services = page.get_by_role("table", name="Services")
        await expect(services.get_by_role("link", name=AUTH)).to_be_visible()
        await page.get_by_role("searchbox", name="Search by name").fill("invo")
        results = page.locator('main[data-shown^="#/search"]')
        await results.get_by_role("link", name="Orders/Invoice").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Orders/Invoice")
        await expect(page.get_by_role("row").filter(has_text="10.0.0.1:8001")).to_be_visible()


async def test_the_login_page_explains_how_to_log_in(browser: Browser, admin: Admin):
    async with Visitor(browser, admin) as stranger:
        await stranger.page.goto(admin.url)
        await expect(stranger.page.get_by_text("mooring login", exact=True)).to_be_visible()
        stranger.forgiven = "401"  # the browser logs that it was refused, the page nothing worse
        await stranger.page.get_by_label("Or paste a token").fill(admin.tokens["viewer"])
        await stranger.page.get_by_role("button", name="Log in").click()
        await expect(stranger.page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.mark.parametrize(
    ("scope", "place"), [({"groups": ["Common"]}, "Overview"), ({"tenants": [7]}, "Tenants")]
)
async def test_a_scoped_user_sees_only_accessible_pages(
    browser: Browser, admin: Admin, scope: dict[str, Any], place: str
):
    async with Visitor(browser, admin) as scoped:
        await scoped.log_in(await admin.token("viewer", **scope))
        await expect(scoped.page.get_by_role("heading", level=1)).to_contain_text(place)
        places = scoped.page.get_by_role("navigation", name="Navigation").get_by_role("link")
        await expect(places).to_have_text([place])


async def test_counts_and_times_stay_on_one_line_beside_a_long_name(visitor: Visitor, admin: Admin):
    page = visitor.page
    async with registered(admin, "Common/" + "l" * 90, "Common/b"):
        await visitor.go()
        row = page.get_by_role("row").filter(has_text="Common/b")
        await expect(row).to_be_visible()
        for cell in (row.locator(".rate"), row.locator("td > time")):
            styled = await cell.evaluate("each => getComputedStyle(each).whiteSpace")
            assert styled == "nowrap"
            tall = "each => each.getBoundingClientRect().height"
            assert await cell.evaluate(tall) < 30


async def test_the_page_shows_an_instance_expire_and_return_live(visitor: Visitor, admin: Admin):
    page = visitor.page
    wanted = {"host": "10.0.0.7", "port": 9000, "protocol": "http", "ttl": 6.0}
    entry = "/registry/services/Common%2FAuth/instances"
    made = (await admin.post(entry, wanted, as_="service")).json()

    async def beat() -> None:
        while True:
            heartbeat = {"incarnation": made["incarnation"]}
            answer = await admin.put(f"{entry}/10.0.0.7:9000/beat", heartbeat, as_="service")
            assert answer.status_code == 200
            await asyncio.sleep(0.3)

    beating = asyncio.create_task(beat())
    await admin.sees(AUTH, "10.0.0.7:9000")
    await visitor.go("service", AUTH)
    row = page.get_by_role("row").filter(has_text="10.0.0.7:9000")
    await expect(row).to_contain_text("up")
    beating.cancel()
    # Without heartbeats it expires. The page updates without a reload.
    await expect(page.get_by_text("This service has no instances")).to_be_visible()
    await expect(page.get_by_role("link", name="Common/Auth has no instance")).to_be_visible()
    assert (await admin.post(entry, {**wanted, "ttl": 60.0}, as_="service")).status_code == 201
    await expect(row).to_contain_text("up")
    await expect(page.get_by_role("link", name="Common/Auth has no instance")).to_have_count(0)


async def test_a_service_without_instances_is_flagged_and_can_be_forgotten(
    visitor: Visitor, admin: Admin
):
    page = visitor.page
    async with registered(admin, AUTH):
        await visitor.go()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    note = page.get_by_role("link", name="Common/Auth has no instance: the last one deregistered")
    await expect(note).to_be_visible()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await note.click()
    await page.get_by_role("button", name="Forget…").click()
    visitor.forgiven = (
        "404"  # it may read the forgotten service once more before it leaves the page
    )
    await page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await expect(page.get_by_text("Nothing is registered yet")).to_be_visible()


async def test_an_instance_is_drained_and_enabled(visitor: Visitor, admin: Admin):
    page = visitor.page
    async with registered(admin, AUTH, AUTH) as (first, _):
        await visitor.go("instance", AUTH, first)
        await page.get_by_role("button", name="Drain").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text(first)
        await dialog.get_by_role("button", name="Drain").click()
        await expect(page.locator(".head")).to_contain_text("disabled")
        await expect(page.locator(".timeline")).to_contain_text("disabled")
        answer = await admin.get("/registry/services/Common%2FAuth/instances", as_="service")
        assert first not in [instance["id"] for instance in answer.json()]
        await page.get_by_role("button", name="Enable").click()
        await page.get_by_role("dialog").get_by_role("button", name="Enable").click()
        await expect(page.locator(".head")).not_to_contain_text("disabled")


async def test_a_viewer_cannot_change_anything(browser: Browser, admin: Admin):
    async with registered(admin, AUTH) as (only,), Visitor(browser, admin) as viewer:
        await viewer.log_in("viewer")
        await viewer.go("instance", AUTH, only)
        await expect(viewer.page.get_by_role("button", name="Drain")).to_be_disabled()
        await expect(viewer.page.get_by_role("button", name="Deregister…")).to_be_disabled()
        await expect(viewer.page.get_by_role("link", name="Audit")).to_have_count(0)


async def test_a_tenant_is_edited_and_rolled_back(visitor: Visitor, admin: Admin):
    page = visitor.page
    document = {
        "meta": {"name": "Harbour", "code": "harbour"},
        "domain": {"primary": "harbour.example"},
    }
    assert (await admin.put("/admin/tenants/7", document)).status_code == 201
    await visitor.go("tenants")
    await page.get_by_role("link", name="Harbour").click()
    await page.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="Document")
    await editor.fill("{ this is no JSON")
    await page.get_by_role("button", name="Review changes").click()
    await expect(page.get_by_role("alert").first).to_contain_text("JSON")
    await editor.fill('{"meta": {"name": "Lighthouse", "code": "harbour"}}')
    await page.get_by_role("button", name="Review changes").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".removed")).to_contain_text("Harbour")
    await expect(dialog.locator(".added")).to_contain_text("Lighthouse")
    await dialog.get_by_role("button", name="Publish").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Lighthouse")
    await page.get_by_role("button", name="Roll back to this version…").click()
    await expect(dialog.locator(".added")).to_contain_text("Harbour")
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Harbour")
    await expect(page.get_by_role("row").filter(has_text="rollback")).to_have_count(1)


async def test_the_page_warns_of_a_password_in_clear_text(
    visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
):
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    monkeypatch.setenv("MOORING_ENCRYPTION_KEY", "")
    document = {"meta": {"name": "Harbour", "code": "harbour"}}
    assert (await admin.put("/admin/tenants/7", document)).status_code == 201
    await visitor.go("tenant", "7")
    await page.get_by_role("button", name="Edit").click()
    database = {"driver": "mysql", "database": "x", "password": "hunter2"}
    editor = page.get_by_role("textbox", name="Document")
    await editor.fill(json.dumps({"database": {"orders": database}}))
    await page.get_by_role("button", name="Review changes").click()
    await dialog.get_by_role("button", name="Publish").click()
    warning = page.get_by_role("status").get_by_text("stored in clear text")
    await expect(warning).to_contain_text("the password of database/orders")
    await visitor.go("shared")
    await (
        page.locator('section[data-key="platform"]')
        .get_by_role("button", name="New setting…")
        .click()
    )
    await dialog.get_by_label("Key").fill("mail")
    await dialog.get_by_role("button", name="Continue").click()
    await editor.fill('{"host": "mx", "password": "hunter2"}')
    await page.get_by_role("button", name="Review changes").click()
    await dialog.get_by_role("button", name="Set").click()
    await expect(warning.filter(has_text="platform/configs/mail")).to_be_visible()


async def test_a_new_tenant_never_replaces_an_existing_one(visitor: Visitor, admin: Admin):
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.go("tenants")
    await page.get_by_role("button", name="New tenant…").click()
    await dialog.get_by_label("Tenant id").fill("7")
    await dialog.get_by_role("button", name="Continue").click()
    editor = page.get_by_role("textbox", name="Document")
    await editor.fill('{"meta": {"name": "Mine", "code": "mine"}}')
    theirs = {"meta": {"name": "Theirs", "code": "theirs"}}
    assert (await admin.put("/admin/tenants/7", theirs)).status_code == 201
    visitor.forgiven = "Failed to load resource"  # 404 before it exists, 412 when it does
    await page.get_by_role("button", name="Review changes").click()
    await dialog.get_by_role("button", name="Publish").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("tenant 7 already exists")
    await dialog.get_by_role("button", name="Cancel").click()
    await visitor.go("tenants")
    await expect(page.get_by_role("link", name="Theirs")).to_be_visible()
    await page.get_by_role("button", name="New tenant…").click()
    await dialog.get_by_label("Tenant id").fill("7")
    await dialog.get_by_role("button", name="Continue").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Tenant 7 already exists")


async def test_a_tenant_that_changed_meanwhile_is_neither_rolled_back_nor_deleted(
    visitor: Visitor, admin: Admin
):
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    for name in ("Harbour", "Lighthouse"):
        await admin.put("/admin/tenants/7", {"meta": {"name": name, "code": "harbour"}})
    visitor.forgiven = "412"
    for button, yes in (("Roll back to this version…", "Roll back"), ("Delete…", "Delete")):
        await visitor.go("tenants")
        await visitor.go("tenant", "7")
        await page.get_by_role("button", name=button).first.click()
        await expect(dialog).to_be_visible()
        document = {"storage": {"uploadQuotaGb": len(button)}}
        assert (await admin.put("/admin/tenants/7", document)).status_code == 200
        await dialog.get_by_role("button", name=yes).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("changed since you read it")
        await dialog.get_by_role("button", name="Cancel").click()
    shown = (await admin.get("/admin/tenants/7")).json()["document"]
    assert shown["meta"]["name"] == "Lighthouse"


async def test_shared_settings_are_set_edited_rolled_back_and_removed(
    visitor: Visitor, admin: Admin
):
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.go("tenants")
    await page.get_by_role("link", name="Shared settings").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Shared settings")
    platform = page.locator('section[data-key="platform"]')
    await platform.get_by_role("button", name="New setting…").click()
    await dialog.get_by_label("Key").fill("mail")
    await dialog.get_by_role("button", name="Continue").click()
    editor = page.get_by_role("textbox", name="Document")
    await editor.fill('{"host": "mx", "password": "hunter2"}')
    await page.get_by_role("button", name="Review changes").click()
    await dialog.get_by_role("button", name="Set").click()
    await expect(platform.get_by_role("heading", name="mail")).to_be_visible()
    await expect(page.get_by_text("hunter2")).to_have_count(0)
    await platform.get_by_role("button", name="Edit mail").click()
    await editor.fill((await editor.input_value()).replace('"mx"', '"mx2"'))
    await page.get_by_role("button", name="Review changes").click()
    await expect(dialog.locator(".added")).to_contain_text("mx2")
    await dialog.get_by_role("button", name="Set").click()
    await expect(platform.get_by_text("mx2")).to_be_visible()
    await platform.get_by_role("button", name="Roll back to this version…").click()
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(platform.get_by_role("row").filter(has_text="rollback")).to_have_count(1)
    parts = await admin.hub.publisher().read("platform")
    assert parts == {"platform/configs/mail": {"host": "mx", "password": "hunter2"}}
    await platform.get_by_role("button", name="Remove… mail").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(platform.get_by_text("No settings.")).to_be_visible()


async def test_a_lock_shows_its_queue_and_can_be_released(visitor: Visitor, admin: Admin):
    page = visitor.page
    async with holding(admin, "jobs/report") as holder, holding(admin, "jobs/report"):
        await visitor.go("locks")
        row = page.get_by_role("row").filter(has_text="jobs/report")
        await expect(row).to_contain_text("1 waiting")
        await row.get_by_role("button", name="Force release").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("its host is on fire")
        await dialog.get_by_role("button", name="Release").click()
        await expect(row).not_to_contain_text("1 waiting")
        with pytest.raises(LockLost):
            await holder
    audit = (await admin.get("/admin/audit", as_="admin")).json()
    assert "its host is on fire" in str(audit)


async def test_every_page_shows_that_the_store_is_unavailable_and_disables_changes(
    browser: Browser, etcd: Callable[[str], EtcdServer], tmp_path: Path
):
    server = etcd("3.5").url.removeprefix("etcd://")
    async with FaultProxy(server) as proxy:
        url = f"etcd://{proxy.address}?timeout=1s&namespace=/{uuid.uuid4().hex}"
        async with (
            Admin(url, folder=tmp_path) as admin,
            registered(admin, AUTH) as (id,),
            Visitor(browser, admin) as visitor,
        ):
            await admin.put("/admin/tenants/7", {"meta": {"code": "acme", "name": "Acme"}})
            await visitor.log_in()
            page, banner = visitor.page, visitor.page.locator(".banner")
            visitor.forgiven = "Failed to load resource"  # the browser logs each 503
            await visitor.go("instance", AUTH, id)
            state = page.locator(".lead .mark")
            await expect(state).to_have_text("up")
            await expect(page.get_by_role("button", name="Deregister")).to_be_enabled()
            proxy.refuse()
            await expect(banner).to_contain_text("The registry has been unreachable since")
            await expect(state).to_have_text("up (stale)")
            await expect(state).to_have_class("mark old")
            await expect(page.get_by_role("button", name="Deregister")).to_be_disabled()
            await visitor.go("service", AUTH)
            await expect(banner).to_contain_text("unreachable")
            await expect(page.get_by_role("cell", name="up (stale)")).to_be_visible()
            await page.goto(f"{admin.url}/#/tenants")
            await expect(banner).to_contain_text("unreachable")
            await visitor.go("tokens")
            await expect(banner).to_contain_text("Changes are disabled")
            await expect(page.get_by_role("button", name="New token")).to_be_disabled()
            proxy.heal()
            await expect(banner).to_have_text("")
            await visitor.go("tenant", "7")
            await expect(page.get_by_role("button", name="Edit")).to_be_enabled()
            proxy.refuse()
            await expect(page.get_by_role("button", name="Edit")).to_be_disabled()
            await expect(banner).to_contain_text("unreachable")
            proxy.heal()
            await expect(page.get_by_role("button", name="Edit")).to_be_enabled()


async def test_the_page_shows_when_it_is_not_live(visitor: Visitor, admin: Admin):
    page = visitor.page
    await expect(page.locator(".top .mark")).to_have_text("live")
    visitor.forgiven = "Failed to load resource"  # the browser logs it when offline
    await page.context.set_offline(True)
    admin.application.end_streams()
    await expect(page.get_by_text("This page may be outdated")).to_be_visible()
    await page.context.set_offline(False)
    await expect(page.locator(".top .mark")).to_have_text("live")
    await expect(page.get_by_text("This page may be outdated")).to_have_count(0)
