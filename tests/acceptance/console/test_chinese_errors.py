"""Errors of the server in the Chinese console: no text that it shows is an English sentence."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from mooring.messages import message
from mooring.model import Instance
from mooring.registry.evictions import Brake
from mooring.store.contract import Put
from mooring.tenants.keys import TenantKeys
from tests.acceptance.console.visitor import PATIENCE, Visitor
from tests.admin import Admin

pytestmark = pytest.mark.asyncio(loop_scope="session")

expect.set_options(timeout=PATIENCE)

QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
"""Commands, and values that somebody entered."""
ENGLISH = re.compile(r"[A-Za-z]{2,}(?:[ ,:;]+[A-Za-z]{2,}){2,}")


async def check_chinese(shown: Locator, says: str) -> None:
    await expect(shown).to_contain_text(says)
    text = QUOTED.sub("", await shown.inner_text())
    assert not ENGLISH.search(text), text


def in_chinese(browser: Browser, admin: Admin) -> Visitor:
    visitor = Visitor(browser, admin, locale="zh-CN")
    visitor.forgiven = "Failed to load resource"  # the browser reports each error of the server
    return visitor


async def submit(page: Page, button: str) -> Locator:
    """Press a button of the dialog. Returns the error that it shows."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=button, exact=True).click()
    return dialog.get_by_role("alert")


async def test_a_wrong_token(browser: Browser, admin: Admin):
    async with in_chinese(browser, admin) as stranger:
        await stranger.page.goto(admin.url)
        await stranger.page.get_by_label("或者粘贴令牌").fill("wrong")
        await stranger.page.get_by_role("button", name="登录").click()
        await check_chinese(stranger.page.get_by_role("alert"), "令牌不存在、已吊销或已过期")


async def test_a_weight_that_is_too_large(browser: Browser, admin: Admin):
    instance = Instance("Common/Auth", "10.0.0.1", 8000)
    async with admin.hub.register(instance), in_chinese(browser, admin) as visitor:
        await admin.sees("Common/Auth", "10.0.0.1:8000")
        await visitor.log_in()
        await visitor.go("instance", "Common/Auth", "10.0.0.1:8000")
        await visitor.page.get_by_role("button", name="权重…").click()
        await visitor.page.get_by_role("dialog").get_by_label("权重").fill("2000000000")
        failure = await submit(visitor.page, "设置")
        await check_chinese(failure, "请求正文：weight 必须不超过")


async def test_a_token_with_an_invalid_duration_and_one_with_an_invalid_tenant(
    browser: Browser, admin: Admin
):
    async with in_chinese(browser, admin) as visitor:
        await visitor.log_in()
        await visitor.go("tokens")
        await visitor.page.get_by_role("button", name="新建令牌…").click()
        dialog = visitor.page.get_by_role("dialog")
        await dialog.get_by_label("使用它的人或程序的名称").fill("ci")
        await dialog.get_by_label("有效期").fill("soon")
        await check_chinese(await submit(visitor.page, "创建"), "'soon' 不是时长")
        await dialog.get_by_label("租户，以逗号分隔").fill("a")
        await check_chinese(
            await submit(visitor.page, "创建"), "tenants[0] 必须是整数，而不是空值（null）"
        )


async def test_a_lock_that_is_gone(browser: Browser, admin: Admin):
    async with in_chinese(browser, admin) as visitor:
        await visitor.log_in()
        async with admin.hub.lock("jobs/report"):
            await visitor.go("locks")
            await visitor.page.get_by_role("button", name="强制释放… jobs/report").click()
        await visitor.page.get_by_role("dialog").get_by_label("原因").fill("stuck")
        failure = await submit(visitor.page, "释放")
        await check_chinese(failure, "锁 'jobs/report' 既没有持有者，也没有等待者")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{\n  "meta": {\n', "第 3 行不是有效的 JSON"),
        ('{"meta": {"name": "Harbour", "code": "harbour", "status": "asleep"}}', "status"),
        ('{"database": {"a b": {}}}', "a b"),
        ('{"meta": {"name": "Harbour"}}', "meta 缺少 code"),
        ('{"domain": {"primary": "not a host"}}', "domain/primary"),
        (
            '{"database": {"a": {"port": 70000}}}',
            "必须是介于 1 和 65535 之间的数，而不是70000",
        ),
        ('{"meta": {"code": 7}}', "租户 7：meta.code 必须是文本，而不是数字（请加引号）"),
        ('{"metta": {}}', "包含未知字段 'metta'"),
        ('{"meta": 1}', "请求正文：meta 必须是对象或空值（null），而不是整数"),
    ],
)
async def test_an_invalid_document_of_a_tenant(
    browser: Browser, admin: Admin, document: str, says: str
):
    async with in_chinese(browser, admin) as visitor:
        await visitor.log_in()
        await visitor.go("tenant", "7", "new")
        await visitor.page.get_by_label("文档").fill(document)
        await visitor.page.get_by_role("button", name="核对变更").click()
        await check_chinese(visitor.page.locator("p.failure[role=alert]"), says)


async def test_an_unreadable_part_of_a_tenant(browser: Browser, admin: Admin):
    await admin.hub.store.commit(Put(TenantKeys().part(7, "storage"), b"{oops"))
    async with in_chinese(browser, admin) as visitor:
        await visitor.log_in()
        await visitor.go("tenant", "7")
        await check_chinese(visitor.page.locator("p.failure"), "storage 无法解析，已省略")


async def test_a_page_of_something_that_does_not_exist(browser: Browser, admin: Admin):
    async with in_chinese(browser, admin) as visitor:
        await visitor.log_in()
        for path, says in (
            (["service", "Common/Nothing"], "'Common/Nothing'"),
            (["instance", "Common/Nothing", "a"], "'Common/Nothing'"),
            (["tenant", "9"], "租户 9"),
        ):
            await visitor.go(*path)
            await check_chinese(visitor.page.get_by_role("alert"), says)


async def test_a_failed_check_and_a_brake(browser: Browser, admin: Admin):
    instance = Instance("Common/Auth", "10.0.0.1", 8000)
    async with admin.hub.register(instance), in_chinese(browser, admin) as visitor:
        await admin.sees("Common/Auth", "10.0.0.1:8000")
        admin.fleet.report_check("Common/Auth", "10.0.0.1:8000", failure=message("probe_refused"))
        admin.fleet.update_brakes({"Common/Auth": Brake(3, 4, 0, 0).message})
        await visitor.log_in()
        await visitor.go("service", "Common/Auth")
        problem = visitor.page.locator(".problems .what").filter(has_text="10.0.0.1:8000")
        await check_chinese(problem, "健康检查失败：它拒绝连接")
        await check_chinese(visitor.page.locator(".timeline"), "4 个实例中有 3 个同时失联")
        await visitor.go("instance", "Common/Auth", "10.0.0.1:8000")
        await check_chinese(visitor.page.locator(".pairs .why"), "它拒绝连接")
        refused = message("address_refused", problem=message("target_link_local"))
        admin.fleet.report_check("Common/Auth", "10.0.0.1:8000", unchecked=refused)
        await check_chinese(visitor.page.locator(".pairs .why"), "它的地址是链路本地地址")
