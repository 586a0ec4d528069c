"""Names: the one grammar for groups and services, and the nearest known name to a wrong one."""

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
"""Where a service lives that is written without a group."""


LONGEST = 512
"""Characters of a name at the most."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # Cc, and halves of surrogates
_COLON_OR_SPACE = re.compile(r"[:\s]")
_REMEMBERED = 200
"""Characters of a service that is remembered, taken apart."""

_MEANT = 64
"""Characters of a name for which another one is looked for that was meant."""
_LOOKED_AT, _ALIKE, _COMPARED = 10_000, 200, 6
"""Names that are looked at, that may seem to be meant, and that are compared at length: the last
takes up to a millisecond for each, while nobody else is answered."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: what was probably meant, and what there is."""
    known = sorted(known)
    close = closest(name, known)
    meant = f", did you mean {quoted(close)}?" if close else ""
    return f"{meant} (there are {', '.join(known)})"


def closest(name: str, known: Iterable[str]) -> str:
    """Which of the known names was probably meant; empty where none seems to be, or where it would
    take long to find out."""
    if not 0 < len(name) <= _MEANT:
        return ""
    least, most = len(name) * 7 // 13, len(name) * 13 / 7  # or less than 0.7 is the same
    alike = [each for each in islice(known, _LOOKED_AT) if least <= len(each) <= most]
    if len(alike) > _ALIKE:
        start, end = name[:2], name[-2:]
        alike = [each for each in alike if each.startswith(start) and each.endswith(end)]
        if len(alike) > _ALIKE:
            return ""
    pairs = set(pairwise(f" {name} "))

    def shared(each: str) -> int:
        theirs = set(pairwise(f" {each} "))
        return 2 * len(pairs & theirs) - len(theirs)

    best = heapq.nlargest(_COMPARED, alike, key=shared)
    return next(iter(difflib.get_close_matches(name, best, n=1, cutoff=0.7)), "")


def check_name(what: str, name: str) -> None:
    """Raise `InvalidName` where `name` cannot be one; the message says which rule it breaks."""
    if problem := _problem(name):
        raise InvalidName(f"the {what} name {quoted(name, 100)} {problem}")


_TOO_LONG = f"is longer than {LONGEST} characters"


def _problem(name: str) -> str:
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
    """Like `check_name`, for places that forbid colons and spaces too."""
    check_name(what, name)
    if _COLON_OR_SPACE.search(name):
        raise InvalidName(f"the {what} name {quoted(name)} contains a colon or a space")


def split_service(service: str) -> tuple[str, str]:
    """Group and name of a service that is written `group/name` or `name`."""
    if not isinstance(service, str):
        raise InvalidName(f"a service's name must be text, not {quoted(service)}")
    if len(service) <= _REMEMBERED:
        return _remembered(service)
    if len(service) > 2 * LONGEST + 1:
        raise InvalidName(
            f"the service {quoted(service, 40)} is too long: {LONGEST} characters is the limit"
        )
    return _split(service)


def is_service(service: str) -> bool:
    """Whether `split_service` takes it."""
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


_remembered = functools.lru_cache(maxsize=10_000)(_split)


def join_service(group: str, name: str) -> str:
    """How a service is written and shown: those of the default group by their bare name."""
    return name if group == DEFAULT_GROUP else f"{group}/{name}"
