"""Names: the one grammar for groups and services, and the nearest known name to a wrong one."""

from __future__ import annotations

import difflib
import functools
import unicodedata
from collections.abc import Iterable

from mooring.errors import InvalidName

DEFAULT_GROUP = "default"
"""Where a service lives that is written without a group."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: what was probably meant, and what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"{meant} (there are {', '.join(known)})"


def check_name(what: str, name: str) -> None:
    """Raise `InvalidName` where `name` cannot be one; the message says which rule it breaks."""
    if problem := _problem(name):
        raise InvalidName(f"the {what} name {name!r} {problem}")


def _problem(name: str) -> str:
    if not isinstance(name, str):
        return f"must be text, not {type(name).__name__}"
    if not name:
        return "is empty"
    if "/" in name:
        return "contains a slash"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        return "contains a control character"
    if name != name.strip():
        return "starts or ends with a space"
    if name in (".", ".."):
        return "means a folder"
    return ""


def check_part(what: str, name: str) -> None:
    """Like `check_name`, for places that forbid colons and spaces too."""
    check_name(what, name)
    if ":" in name or any(letter.isspace() for letter in name):
        raise InvalidName(f"the {what} name {name!r} contains a colon or a space")


def split_service(service: str) -> tuple[str, str]:
    """Group and name of a service that is written `group/name` or `name`."""
    if not isinstance(service, str):
        raise InvalidName(f"a service's name must be text, not {type(service).__name__}")
    return _split(service)


def is_service(service: str) -> bool:
    """Whether `split_service` takes it."""
    try:
        split_service(service)
    except InvalidName:
        return False
    return True


@functools.lru_cache(maxsize=10_000)
def _split(service: str) -> tuple[str, str]:
    group, slash, name = service.rpartition("/")
    if not slash:
        group = DEFAULT_GROUP
    elif "/" in group:
        raise InvalidName(f"the service {service!r} has two slashes: write it as group/name")
    check_name("group", group)
    check_name("service", name)
    if name == "info":
        raise InvalidName(f"the service name 'info' in {service!r} is reserved for descriptions")
    return group, name


def join_service(group: str, name: str) -> str:
    """How a service is written and shown: those of the default group by their bare name."""
    return name if group == DEFAULT_GROUP else f"{group}/{name}"
