"""The console's files, as they are packaged: complete, in both languages, and without what its
Content-Security-Policy forbids."""

from __future__ import annotations

import posixpath
import re

import pytest

from mooring.server.api.console import MEDIA, endpoints, files
from mooring.server.http.response import HTTPError
from mooring.server.http.routing import Router

ROUTER = Router((each.method, each.path, each) for each in endpoints)

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
    found = _IMPORT.findall(_text(name))
    return {posixpath.normpath(posixpath.join(folder, relative)) for relative in found}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_only_what_is_there(name: str):
    assert _imports(name) <= set(files())


def test_the_page_asks_at_once_for_all_that_its_first_view_needs():
    wanted, found = {"app.js", "pages/overview.js"}, set[str]()
    while wanted:
        name = wanted.pop()
        found.add(name)
        wanted |= {each for each in _imports(name) if not each.endswith("login.js")} - found
    asked = set(re.findall(r'(?:href|src)="/console/([^"]+[.]js)"', _text("index.html")))
    assert asked == found | {"theme.js"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_markup_and_runs_no_text(name: str):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.style\b"
    )
    assert re.findall(forbidden, _text(name)) == []


def test_the_page_has_no_inline_script_or_style_and_asks_nobody_else():
    page = _text("index.html")
    assert re.findall(r"<script(?![^>]* src=)|<style|\bstyle=|\bon\w+=|https?://", page) == []
    for path in re.findall(r'(?:href|src)="/console/([^"]+)"', page):
        assert path in files()
    assert "http" not in re.sub(r"xmlns=\S+", "", _text("logo.svg"))
    assert "url(" not in _text("style.css")


def test_both_languages_say_the_same_things():
    english, chinese = (set(_WORD.findall(_text(f"locales/{name}.js"))) for name in ("en", "zh"))
    assert chinese == english


def test_every_word_that_is_asked_for_is_there():
    asked = {word for name in SCRIPTS for word in re.findall(r'\bt\("([^"]+)"', _text(name))}
    assert asked <= set(_WORD.findall(_text("locales/en.js")))


@pytest.mark.parametrize("path", [b"/console/../app.js", b"/console/%2e%2e/app.js"])
def test_a_path_leads_nowhere_else(path: bytes):
    _, named = ROUTER.match("GET", path)
    assert "/".join(named.values()) not in files()


@pytest.mark.parametrize("path", [b"/console/", b"/console", b"/console/pages/x/y.js"])
def test_nothing_is_below_the_folders(path: bytes):
    with pytest.raises(HTTPError, match=r"no endpoint|empty"):
        ROUTER.match("GET", path)
