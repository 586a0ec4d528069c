"""The documentation site: it builds, requests nothing from other hosts, and can be searched."""

from __future__ import annotations

import ast
import dataclasses
import functools
import html
import http.server
import importlib
import json
import re
import shutil
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from playwright.async_api import async_playwright
from prometheus_client import REGISTRY
from tools import build_docs, reference, reference_sources

import mooring.sync
from tests.acceptance.console.chromium import FLAGS, find_chromium

pytestmark = pytest.mark.real_time

CHINESE = "# 入门教程\n\n每个实例定期发送心跳，锁带有围栏令牌，租户配置保存在存储中。\n"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(
    r'id="(mooring[\w.]*)" class="doc doc-heading">(?:(?!doc-heading).)*?'
    r'<div class="doc doc-contents[^"]*">\s*'
    r'(?:<p class="doc doc-class-bases">.*?</p>\s*)?(<p>|<ul>)?',
    re.DOTALL,
)
"""The name of an entry, and the start of its description."""
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+
    |<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon|dns-prefetch|modulepreload))
     [^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+
    |@import\s+(?:url\()?["']?(?:https?:)?//[^"')\s]+
    |url\(["']?(?:https?:)?//[^"')\s]+""",
    re.VERBOSE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout, with another page in Chinese."""
    folder = tmp_path_factory.mktemp("site")
    docs = folder / "source"
    shutil.copytree(build_docs.ROOT / "docs", docs)
    (docs / "zh").mkdir(exist_ok=True)
    (docs / "zh" / "search-test.md").write_text(CHINESE, encoding="utf-8")
    scratch = folder / "scratch"
    scratch.mkdir()
    assert build_docs.build(scratch, folder / "site", docs) == 0
    return folder / "site"


def test_a_broken_link_fails_the_build(tmp_path):
    docs = tmp_path / "source"
    shutil.copytree(build_docs.ROOT / "docs", docs)
    with (docs / "tutorial.md").open("a") as page:
        page.write("\n[missing](missing-page.md)\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert build_docs.build(scratch, tmp_path / "site", docs) != 0
    assert not (tmp_path / "site").exists()


def test_no_page_loads_anything_from_another_host(site):
    external = {}
    for file in site.rglob("*"):
        if file.suffix in (".html", ".css", ".js"):
            urls = LOADED.findall(file.read_text(encoding="utf-8"))
            # A namespace of SVG is a name, not an address.
            if urls := [url for url in urls if "www.w3.org/" not in url]:
                external[str(file.relative_to(site))] = urls
    assert not external


@pytest.mark.parametrize(
    "text", ['<script src="https://x.test/a.js">', '<link rel="stylesheet" href="//x.test/a.css">']
)
def test_the_search_for_external_files_finds_them(text):
    assert LOADED.search(text)


def test_every_page_of_the_repository_is_in_the_site(site):
    for page in (build_docs.ROOT / "docs").rglob("*.md"):
        if page.name in ("README.md", "index.md"):
            continue
        path = page.relative_to(build_docs.ROOT / "docs").with_suffix("")
        assert (site / path / "index.html").exists(), path


def test_every_page_declares_its_language(site):
    for page in site.rglob("index.html"):
        language = "zh" if page.is_relative_to(site / "zh") else "en"
        assert f'<html lang="{language}"' in page.read_text(encoding="utf-8"), page


def test_the_search_index_has_chinese_text(site):
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    assert [i["location"] for i in items if "围栏令牌" in i["text"]] == ["zh/search-test/"]


async def test_a_browser_finds_a_chinese_word_and_contacts_no_other_host(site, tmp_path):
    chromium = find_chromium(tmp_path)
    with served(site) as base:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium.path, args=list(FLAGS), env=dict(chromium.environment)
            )
            page = await browser.new_page(viewport={"width": 1280, "height": 800})
            requested: list[str] = []
            page.on("request", lambda request: requested.append(request.url))
            for word, location in (("令牌", "zh/search-test/"), ("heartbeat", "heartbeat/")):
                await page.goto(base)
                await page.locator("button.md-search__button").click()
                await page.keyboard.type(word)
                result = page.locator(f'a[href*="{location}"][href*="?h="]').first
                await result.wait_for(timeout=20_000)
                assert location in unquote(await result.get_attribute("href") or "")
            await browser.close()
    assert [url for url in requested if not url.startswith((base, "data:", "blob:"))] == []


def test_every_name_that_mooring_exports_is_in_the_reference():
    listed = {name for group in reference_sources.GROUPS for name, _ in public(group)}
    assert reference_sources.exported() <= listed
    assert listed >= reference_sources.CREATED_BY_MOORING


def test_every_name_that_a_page_uses_is_in_the_reference():
    listed = {name for group in reference_sources.GROUPS for name, _ in public(group)}
    listed |= {f"mooring.sync.{name}" for name in mooring.sync.__all__}
    for kind in reference_sources.error_types():
        listed |= {f"mooring.{kind.__name__}", f"mooring.errors.{kind.__name__}"}
    root = build_docs.ROOT
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        for code in PYTHON.findall(page.read_text(encoding="utf-8")):
            assert not (missing := set(names(code)) - listed), f"{page.name}: {missing}"


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("import mooring, mooring.sync\nmooring.sync.connect(url).store", ["mooring.sync.connect"]),
        ("from mooring.locks import fencing\nfencing.SQL['table']", ["mooring.locks.fencing.SQL"]),
        ("from mooring.store import Put\nPut.x", ["mooring.store.Put"]),
    ],
)
def test_the_names_of_a_block_are_those_of_its_imports(code, used):
    assert sorted(set(names(code))) == used


def test_every_name_of_the_reference_has_an_entry_in_the_site(site):
    anchors: set[str] = set()
    for page in (site / "reference").rglob("*.html"):
        anchors |= set(re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8")))
    paths = {path for group in reference_sources.GROUPS for _, path in public(group)}
    assert paths <= anchors
    assert "mooring.registry.contract.Registry.instances" in anchors  # inherited
    assert "mooring.model.Instance.port" in anchors  # without a docstring


def test_every_entry_of_the_python_reference_has_a_description_or_is_a_field(site):
    entries, undescribed = 0, set()
    for page in (site / "reference").rglob("*.html"):
        for name, described in ENTRY.findall(page.read_text(encoding="utf-8")):
            entries += 1
            undescribed |= set() if described else {name}
    assert entries > 500
    assert {name for name in undescribed if not is_field(name)} == set()
    assert "mooring.model.Instance.port" in undescribed  # the pattern finds entries


def test_the_reference_shows_defaults_of_fields_but_no_code_of_constructors(site):
    text = (site / "reference" / "python-discovery" / "index.html").read_text(encoding="utf-8")
    assert 'id="mooring.discovery.view.View.service"' in text
    assert 'id="mooring.discovery.view.View.rotation"' not in text
    assert signature(text, "mooring.discovery.view.View.service") == "service: str"
    text = (site / "reference" / "python-registration" / "index.html").read_text(encoding="utf-8")
    assert signature(text, "mooring.model.Instance.protocol") == "protocol: str = 'tcp'"


def test_every_setting_in_the_reference_has_a_description():
    rows = [row for row in reference.settings_page().splitlines() if row.startswith("| `")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_command_is_in_the_reference_with_its_options():
    text = reference.commands_page()
    assert "## mooring serve" in text
    assert "### mooring token create" in text
    assert "`--config" in text


def test_the_metrics_of_the_reference_are_those_that_the_process_exposes():
    described = {metric.name: metric for metric in reference.metrics()}
    for metric in REGISTRY.collect():
        if metric.name.startswith("mooring_"):
            assert described[metric.name].text == metric.documentation
            assert described[metric.name].kind == metric.type


def is_field(path: str) -> bool:
    """Whether a path names a field of a class of plain data."""
    owner, _, name = path.rpartition(".")
    module, _, kind = owner.rpartition(".")
    value = getattr(importlib.import_module(module), kind) if is_module(module) else None
    plain = isinstance(value, type) and (
        dataclasses.is_dataclass(value)
        or issubclass(value, msgspec.Struct | tuple)
        or typing.is_typeddict(value)
    )
    return plain and name in typing.get_type_hints(value)


def signature(page: str, name: str) -> str:
    """The signature of an entry, without its markup."""
    shown = page.partition(f'id="{name}"')[2].partition("<pre>")[2].partition("</pre>")[0]
    return html.unescape(re.sub(r"<[^>]*>", "", shown)).strip()


def public(group: str) -> list[tuple[str, str]]:
    return list(reference_sources.public_names(group))


def names(code: str) -> Iterator[str]:
    """The names of `mooring` that a block of Python imports or uses, without modules and without
    the attributes of a name."""
    tree = ast.parse(code)
    imported = {"mooring": "mooring"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mooring"):
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if not is_module(f"{node.module}.{alias.name}"):
                    yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            path = f"{imported.get(first, '')}.{rest}"
            if first in imported and not is_module(path) and is_module(path.rpartition(".")[0]):
                yield path


def is_module(path: str) -> bool:
    package = path.rpartition(".")[0]
    return not package or (is_module(package) and reference_sources.is_module(path))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


class served:
    """The site on a free port of loopback."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Quiet, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
