"""A secret that stays while the place that it is sent to becomes another: who may not see it could
have it sent to himself. Pure.

What belongs to a secret is what stands beside it, or else around it: the host of a database for its
password, the host of `smtp` for the password below `smtp`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mooring.model import JSON
from mooring.tenants.document import Document
from mooring.tenants.hiding import is_hidden, is_secret, masked, masked_field
from mooring.tenants.keys import kind_of
from mooring.tenants.merging import PASSWORD
from mooring.tenants.publishing import Parts
from mooring.tenants.rules import EXTRA, FIELDS
from mooring.tenants.secrets import MASK

_PLACE = re.compile(
    r"host|ur[il]s?$|endpoint|addr|server|driver|dialect|protocol|scheme|ssl|tls|proxy|socket"
    r"|broker|gateway|webhook|callback|redirect|issuer|dsn|conn(ection)?[_-]?str",
    re.IGNORECASE,
)
_PORT = re.compile(r"(^|[^A-Za-z])[pP](ort|ORT)s?([^a-z]|$)|Ports?([^a-z]|$)")
_ACCOUNT = re.compile(r"database|db[_-]?name|user", re.IGNORECASE)
_STRUCTURE = re.compile(r"[:/@?=;&(]")  # by which a name becomes a part of an address

Object = Mapping[str, JSON]


class Diversion(NamedTuple):
    secret: str
    """The path of what stays."""
    place: str
    """The path of what changes."""

    def __str__(self) -> str:
        return (
            f"{self.secret} would stay as it is while {self.place} changes: who may not see a "
            "secret cannot send it elsewhere; say it anew, or let an admin do this"
        )


def of_document(document: Document, there: Parts) -> Diversion | None:
    """The first one in a document, as it was sent, over what is there of its tenant."""
    for section in document.sections.values():
        for path, value in section.items():
            held = there.get(path)
            if isinstance(value, dict) and isinstance(held, dict):
                found = of_value(path, held, _whole(kind_of(path), held, value))
                if found is not None:
                    return found
    return None


def _whole(kind: str, held: Object, told: Object) -> dict[str, JSON]:
    """A part with what it leaves out and keeps, in masks: secrets, and fields that nobody knows."""
    known = FIELDS[kind]
    kept = {name: inner for name, inner in held.items() if name not in known}
    if told.get("password") in (None, MASK) and not told.get("passwordEncrypted"):
        kept |= {name: held[name] for name in PASSWORD if held.get(name)}
    if told.get("passwordHash") is None and held.get("passwordHash"):
        kept["passwordHash"] = held["passwordHash"]
    extra = told.get(EXTRA)
    said = {
        name: inner
        for name, inner in told.items()
        if name not in (EXTRA, *kept) and inner is not None
    }
    masks = {name: masked_field(name, inner) for name, inner in kept.items()}
    return {**masks, **said, **(extra if isinstance(extra, dict) else {})}


def of_value(path: str, there: JSON, told: JSON) -> Diversion | None:
    """The first one in a value, as it was sent, in the place of what is there."""
    if isinstance(there, list) and isinstance(told, list):
        found = (of_value(f"{path}[{n}]", *pair) for n, pair in enumerate(_pairs(there, told)))
        return next(filter(None, found), None)
    if not isinstance(there, dict) or not isinstance(told, dict):
        return None
    return next(_diversions(path, there, told, _moved(path, there, told)), None)


def _diversions(path: str, there: Object, told: Object, moved: str) -> Iterator[Diversion]:
    """`moved`: what changes of the place that belongs to the secrets here; empty: nothing."""
    for name, old in there.items():
        new, place = told.get(name), f"{path}.{name}"
        if is_hidden(name):
            if moved and new == MASK and old not in (None, ""):
                yield Diversion(place, moved)
        else:
            yield from _below(place, old, new, moved)


def _below(path: str, old: JSON, new: JSON, moved: str) -> Iterator[Diversion]:
    if isinstance(old, dict) and isinstance(new, dict):
        own = any(is_place(name) for name in old)
        yield from _diversions(path, old, new, _moved(path, old, new) if own else moved)
    elif isinstance(old, list) and isinstance(new, list):
        for n, pair in enumerate(_pairs(old, new)):
            yield from _below(f"{path}[{n}]", *pair, moved)


def is_place(name: str) -> bool:
    """Whether a field's name says that it is where something is sent, or how."""
    found = _PLACE.search(name) or _PORT.search(name)
    return found is not None and not is_secret(name)


def _stands_alone(value: Object) -> bool:
    """Whether it has both a place and a secret of its own: then it says nothing of others'."""
    return any(map(is_place, value)) and any(map(is_hidden, value))


def _moved(path: str, there: Object, told: Object) -> str:
    return next(_moves(path, there, told, within=False), "")


def _moves(path: str, there: Object, told: Object, *, within: bool) -> Iterator[str]:
    """What changes of all places below. `within`: a place is what this is all about."""
    for name in {**there, **told}:
        old, new = there.get(name), told.get(name)
        if new == old or (old is not None and new == masked_field(name, old)):
            continue
        yield from _change(f"{path}.{name}", name, old, new, within=within)


def _change(path: str, name: str, old: JSON, new: JSON, *, within: bool) -> Iterator[str]:
    here = within or is_place(name)
    if isinstance(old, dict) and _stands_alone(old) and isinstance(new, dict | None):
        return
    if isinstance(old, dict | None) and isinstance(new, dict | None):
        yield from _moves(path, old or {}, new or {}, within=here)
    elif isinstance(old, list | None) and isinstance(new, list | None):
        for n, (one, other) in enumerate(_pairs(old or [], new or [])):
            if other not in (one, masked(one)):
                yield from _change(f"{path}[{n}]", name, one, other, within=within)
    elif is_place(name) or _is_address(name, new) or (within and isinstance(new, str)):
        yield path


def _is_address(name: str, value: JSON) -> bool:
    if not isinstance(value, str):
        return False
    account = _ACCOUNT.search(name) is not None and _STRUCTURE.search(value) is not None
    return "://" in value or account


def _pairs(old: list[JSON], new: list[JSON]) -> Iterator[tuple[JSON, JSON]]:
    return itertools.zip_longest(old, new)
