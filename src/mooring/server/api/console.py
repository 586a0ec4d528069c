"""The console's own files: a table of what is in the package, read once. They tell nothing; all
that they show comes from the API, to who may see it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from mooring.server.auth.authorization import OPEN
from mooring.server.http.request import ApiCall
from mooring.server.http.response import HTTPError, Response, tag
from mooring.server.http.routing import ApiRoute

MEDIA = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/manifest+json",
    "svg": "image/svg+xml",
}
"""What is served, by how its name ends."""


class File(NamedTuple):
    body: bytes
    media: str
    etag: str


@functools.cache
def files() -> Mapping[str, File]:
    """Every file of the console, by its path below the folder."""
    return dict(_read(resources.files("mooring.server") / "console", ""))


def _read(folder: Traversable, below: str) -> Iterator[tuple[str, File]]:
    for entry in folder.iterdir():
        path = f"{below}{entry.name}"
        media = MEDIA.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            yield from _read(entry, f"{path}/")
        elif media is not None:
            body = entry.read_bytes()
            yield path, File(body, media, tag(body).strip('"'))


async def _page(call: ApiCall) -> Response:
    return _answer("index.html")


async def _icon(call: ApiCall) -> Response:
    return _answer("logo.svg")


async def _file(call: ApiCall) -> Response:
    return _answer("/".join(call.path.values()))


def _answer(path: str) -> Response:
    file = files().get(path)
    if file is None:
        raise HTTPError(404, "not_found", "the console has no such file")
    return Response(
        file.body, media=file.media, etag=file.etag, headers={"Cache-Control": "no-cache"}
    )


ENDPOINTS = (
    ApiRoute("GET", "/", OPEN, _page, "The console", answers={200: None}, media="text/html"),
    ApiRoute(
        "GET",
        "/favicon.ico",
        OPEN,
        _icon,
        "The console's icon",
        answers={200: None},
        media="image/svg+xml",
    ),
    ApiRoute(
        "GET",
        "/console/{file}",
        OPEN,
        _file,
        "A file of the console",
        answers={200: None},
        fails=(404,),
        media="*/*",
    ),
    ApiRoute(
        "GET",
        "/console/{folder}/{file}",
        OPEN,
        _file,
        "A file in a folder of the console",
        answers={200: None},
        fails=(404,),
        media="*/*",
    ),
)
