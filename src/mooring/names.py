"""The grammar of group and service names, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import functools
import heapq
import re
from collections.abc import Iterable
from itertools import islice, pairwise

from mooring.errors import InvalidName
from mooring.formatting import quoted

DEFAULT_GROUP = "default"
"""The group of a service that is written without one."""

LONGEST = 512
"""The maximum length of a name, in characters."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # Cc, and surrogates
_COLON_OR_SPACE = re.compile(r"[:\s]")
_CACHED = 200
"""The maximum length of a service name whose parts are cached."""

_MAX_SUGGESTED = 64
"""The maximum length of a name for which `closest` makes a suggestion."""
_MAX_NAMES, _MAX_CANDIDATES, _MAX_COMPARED = 10_000, 200, 6
"""Limits for `closest`, which blocks the event loop: the names it examines, the candidates it
accepts, and those it compares in detail, which takes up to a millisecond each."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: a suggestion, and the known names."""
    known = sorted(known)
    close = closest(name, known)
    meant = f", did you mean {quoted(close)}?" if close else ""
    return f"{meant} (known: {', '.join(known)})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: a suggestion, if there is one."""
    close = closest(name, known)
    return f": did you mean {quoted(close)}?" if close else ""


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant; empty if there is none, or if finding it would take
    too long."""
    if not 0 < len(name) <= _MAX_SUGGESTED:
        return ""
    least, most = len(name) * 7 // 13, len(name) * 13 / 7  # others differ by more than the cutoff
    candidates = [other for other in islice(known, _MAX_NAMES) if least <= len(other) <= most]
    if len(candidates) > _MAX_CANDIDATES:
        start, end = name[:2], name[-2:]
        candidates = [
            other for other in candidates if other.startswith(start) and other.endswith(end)
        ]
        if len(candidates) > _MAX_CANDIDATES:
            return ""
    pairs = set(pairwise(f" {name} "))

    def similarity(other: str) -> int:
        other_pairs = set(pairwise(f" {other} "))
        return 2 * len(pairs & other_pairs) - len(other_pairs)

    best = heapq.nlargest(_MAX_COMPARED, candidates, key=similarity)
    return next(iter(difflib.get_close_matches(name, best, n=1, cutoff=0.7)), "")


def check_name(what: str, name: str) -> None:
    """Raise `InvalidName` for an invalid name. The message says which rule it violates."""
    if problem := _name_problem(name):
        raise InvalidName(f"the {what} name {quoted(name, 100)} {problem}")


_TOO_LONG = f"is longer than {LONGEST} characters"


def _name_problem(name: str) -> str:
    if not isinstance(name, str):
        return "must be text"
    if not name:
        return "is empty"
    if len(name) > LONGEST:
        return _TOO_LONG
    if "/" in name:
        return "contains a slash"
    if _CONTROL.search(name):
        return "contains a control character"
    if name != name.strip():
        return "starts or ends with a space"
    if name in (".", ".."):
        return "means a folder"
    return ""


def check_part(what: str, name: str) -> None:
    """Like `check_name`, but also rejects colons and spaces."""
    check_name(what, name)
    if _COLON_OR_SPACE.search(name):
        raise InvalidName(f"the {what} name {quoted(name)} contains a colon or a space")


def split_service(service: str) -> tuple[str, str]:
    """The group and name of a service that is written `group/name` or `name`."""
    if not isinstance(service, str):
        raise InvalidName(f"a service's name must be text, not {quoted(service)}")
    if len(service) <= _CACHED:
        return _split_cached(service)
    if len(service) > 2 * LONGEST + 1:
        raise InvalidName(
            f"the service {quoted(service, 40)} is too long: {LONGEST} characters is the limit"
        )
    return _split(service)


def is_service(service: str) -> bool:
    """Whether `split_service` accepts it."""
    try:
        split_service(service)
    except InvalidName:
        return False
    return True


def _split(service: str) -> tuple[str, str]:
    group, slash, name = service.rpartition("/")
    if not slash:
        group = DEFAULT_GROUP
    elif "/" in group:
        raise InvalidName(f"the service {quoted(service)} has two slashes: write it as group/name")
    check_name("group", group)
    check_name("service", name)
    if name == "info":
        raise InvalidName(
            f"the service name 'info' in {quoted(service)} is reserved for descriptions"
        )
    return group, name


_split_cached = functools.lru_cache(maxsize=10_000)(_split)


def join_service(group: str, name: str) -> str:
    """The way to write a service: without the group if that is the default one."""
    return name if group == DEFAULT_GROUP else f"{group}/{name}"
