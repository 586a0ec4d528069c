"""The grammar of group and service names, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import functools
import heapq
import re
from collections.abc import Callable, Iterable
from itertools import islice, pairwise

from mooring.errors import InvalidName
from mooring.formatting import quoted
from mooring.messages import Message, message

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
        raise _invalid(what, name, problem)


def _invalid(what: str, name: str, problem: Message) -> InvalidName:
    return InvalidName(
        message("name_invalid", what=message(f"what_{what}"), name=name, problem=problem)
    )


def _name_problem(name: str) -> Message | None:
    if not isinstance(name, str):
        return message("name_not_text")
    if not name:
        return message("name_empty")
    if len(name) > LONGEST:
        return message("name_too_long", limit=LONGEST)
    if "/" in name:
        return message("name_has_slash")
    if _CONTROL.search(name):
        return message("name_has_control")
    if name != name.strip():
        return message("name_has_space_around")
    if name in (".", ".."):
        return message("name_is_folder")
    return None


def check_part(what: str, name: str) -> None:
    """Like `check_name`, but also rejects colons and spaces."""
    check_name(what, name)
    if _COLON_OR_SPACE.search(name):
        raise _invalid(what, name, message("name_has_colon_or_space"))


def split_service(service: str) -> tuple[str, str]:
    """The group and name of a service that is written `group/name` or `name`."""
    if not isinstance(service, str):
        raise InvalidName(message("service_not_text", name=service))
    if len(service) <= _CACHED:
        return _split_cached(service)
    if len(service) > 2 * LONGEST + 1:
        raise InvalidName(message("service_too_long", name=service, limit=LONGEST))
    return _split(service)


def is_service(service: str) -> bool:
    """Whether `split_service` accepts it."""
    return accepts(split_service, service)


def accepts(check: Callable[..., object], *names: str) -> bool:
    """Whether a check does not raise `InvalidName`."""
    try:
        check(*names)
    except InvalidName:
        return False
    return True


def _split(service: str) -> tuple[str, str]:
    group, slash, name = service.rpartition("/")
    if not slash:
        group = DEFAULT_GROUP
    elif "/" in group:
        raise InvalidName(message("service_two_slashes", name=service))
    check_name("group", group)
    check_name("service", name)
    if name == "info":
        raise InvalidName(message("service_reserved", name=service))
    return group, name


_split_cached = functools.lru_cache(maxsize=10_000)(_split)


def join_service(group: str, name: str) -> str:
    """The way to write a service: without the group if that is the default one."""
    return name if group == DEFAULT_GROUP else f"{group}/{name}"
