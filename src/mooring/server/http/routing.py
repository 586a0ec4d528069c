"""Routing by the raw path.

A parameter is one segment, decoded once: `Common%2FAuth` is one parameter. Fixed segments match
only as they are written, without percent-encoding.
"""

from __future__ import annotations

import re
import unicodedata
import urllib.parse
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mooring.messages import verbatim
from mooring.server.http.response import HTTPError

T = TypeVar("T")

SAFE = ("GET", "HEAD")

LONGEST = 2000
"""Maximum characters of a parameter. A service with its group, the longest name, is shorter."""
_INVALID_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")


@dataclass(slots=True)
class _RouteNode(Generic[T]):
    fixed: dict[bytes, _RouteNode[T]] = field(default_factory=dict)
    parameter: _RouteNode[T] | None = None
    targets: dict[str, tuple[T, list[str]]] = field(default_factory=dict)
    """The target and the names of the parameters, by method."""


class Router(Generic[T]):
    """A table of targets by method and path, in which parameters are segments in braces:
    `/services/{service}/health`."""

    def __init__(self, routes: Iterable[tuple[str, str, T]]) -> None:
        self._root: _RouteNode[T] = _RouteNode()
        for method, path, target in routes:
            node = self._root
            for segment in path.encode().split(b"/")[1:]:
                if segment.startswith(b"{"):
                    node.parameter = node.parameter or _RouteNode()
                    node = node.parameter
                else:
                    node = node.fixed.setdefault(segment, _RouteNode())
            if method in node.targets:
                raise ValueError(f"{method} {path} is declared twice")
            node.targets[method] = (target, parameters(path))

    def match(self, method: str, raw_path: bytes) -> tuple[T, dict[str, str]]:
        """The target and the decoded parameters. Raises `HTTPError` if the path is unknown (404) or
        invalid (400), or does not support the method (405)."""
        node = self._root
        values: list[bytes] = []
        for segment in raw_path.split(b"/")[1:]:
            next_node = node.fixed.get(segment)
            if next_node is None:
                next_node = node.parameter
                values.append(segment)
            if next_node is None:
                raise _not_found(raw_path)
            node = next_node
        if not node.targets or not raw_path.startswith(b"/"):
            raise _not_found(raw_path)
        match = node.targets.get("GET" if method == "HEAD" else method)
        if match is None:
            raise _wrong_method(method, node.targets)
        target, names = match
        return target, dict(zip(names, map(decode_segment, values), strict=True))


def parameters(path: str) -> list[str]:
    """The names of the parameters of a path."""
    return re.findall(r"{(\w+)}", path)


def decode_segment(segment: bytes) -> str:
    """The text of a path segment. Raises `HTTPError` (400) if it is not valid UTF-8, contains a
    control character or is longer than any name, which bounds the work that it can cause."""
    if not segment:
        raise HTTPError(404, "not_found", "path_empty_segment")
    if len(segment) > 3 * 4 * LONGEST:  # 4 bytes per character, each written as %XX
        raise _too_long()
    if _INVALID_ESCAPE.search(segment):
        raise HTTPError(400, "bad_path", "path_bad_escape")
    try:
        text = urllib.parse.unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise HTTPError(400, "bad_path", "path_not_utf8") from None
    if len(text) > LONGEST:
        raise _too_long()
    if not text.isprintable() and any(unicodedata.category(char) == "Cc" for char in text):
        raise HTTPError(400, "bad_path", "path_has_control")
    return text


def _not_found(raw_path: bytes) -> HTTPError:
    path = raw_path.decode("ascii", "backslashreplace")[:200]
    return HTTPError(404, "not_found", "no_endpoint", path=path)


def _too_long() -> HTTPError:
    return HTTPError(400, "bad_path", "path_too_long", limit=LONGEST)


def _wrong_method(method: str, targets: Collection[str]) -> HTTPError:
    allowed = {*targets, *(["HEAD"] if "GET" in targets else [])}
    listed = ", ".join(sorted(allowed))
    return HTTPError(
        405,
        "bad_method",
        "method_not_supported",
        method=method[:20],
        allowed=verbatim(listed),
        headers={"Allow": listed},
    )
