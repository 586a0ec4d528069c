"""The console's files, as they are packaged: complete, in both languages, and without what its
Content-Security-Policy forbids."""

from __future__ import annotations

import posixpath
import re

import pytest

from mooring.server.api.console import MEDIA, endpoints, files
from mooring.server.http.response import HTTPError
from mooring.server.http.routing import Router

ROUTER = Router((endpoint.method, endpoint.path, endpoint) for endpoint in endpoints)

SCRIPTS = sorted(name for name in files() if name.endswith(".js"))
_IMPORT = re.compile(r'(?:from|import\() ?"(\.[^"]+)"')
_WORD = re.compile(r'^  "([^"]+)":', re.MULTILINE)


def _text(name: str) -> str:
    return files()[name].body.decode()


def test_every_file_has_a_media_type_and_is_known_by_its_path():
    assert {"index.html", "style.css", "app.js", "pages/overview.js", "locales/zh.js"} <= set(
        files()
    )
    assert {file.media for file in files().values()} <= set(MEDIA.values())


def _imports(name: str) -> set[str]:
    folder = posixpath.dirname(name)
    imported = _IMPORT.findall(_text(name))
    return {posixpath.normpath(posixpath.join(folder, relative)) for relative in imported}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_only_existing_files(name: str):
    assert _imports(name) <= set(files())


def test_the_page_loads_all_scripts_of_its_first_view_at_once():
    pending, loaded = {"app.js", "pages/overview.js"}, set[str]()
    while pending:
        name = pending.pop()
        loaded.add(name)
        pending |= {
            imported for imported in _imports(name) if not imported.endswith("login.js")
        } - loaded
    requested = set(re.findall(r'(?:href|src)="/console/([^"]+[.]js)"', _text("index.html")))
    assert requested == loaded | {"theme.js"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_neither_create_markup_nor_evaluate_text(name: str):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.style\b"
    )
    assert re.findall(forbidden, _text(name)) == []


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere():
    page = _text("index.html")
    assert re.findall(r"<script(?![^>]* src=)|<style|\bstyle=|\bon\w+=|https?://", page) == []
    for path in re.findall(r'(?:href|src)="/console/([^"]+)"', page):
        assert path in files()
    assert "http" not in re.sub(r"xmlns=\S+", "", _text("logo.svg"))
    assert "url(" not in _text("style.css")


def test_both_languages_have_the_same_keys():
    english, chinese = (set(_WORD.findall(_text(f"locales/{name}.js"))) for name in ("en", "zh"))
    assert chinese == english


def test_every_text_that_a_script_uses_exists():
    asked = {word for name in SCRIPTS for word in re.findall(r'\bt\("([^"]+)"', _text(name))}
    assert asked <= set(_WORD.findall(_text("locales/en.js")))


@pytest.mark.parametrize("path", [b"/console/../app.js", b"/console/%2e%2e/app.js"])
def test_a_path_does_not_lead_outside(path: bytes):
    _, named = ROUTER.match("GET", path)
    assert "/".join(named.values()) not in files()


@pytest.mark.parametrize("path", [b"/console/", b"/console", b"/console/pages/x/y.js"])
def test_subfolders_do_not_exist(path: bytes):
    with pytest.raises(HTTPError, match=r"no endpoint|empty"):
        ROUTER.match("GET", path)
