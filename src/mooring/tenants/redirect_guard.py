"""A secret that stays while the place that it is sent to becomes another: who may not see it could
have it sent to himself. Pure.

What belongs to a secret is what stands beside it, or else around it: the host of a database for its
password, the host of `smtp` for the password below `smtp`. In a flat configuration it is what
begins with the same word: `dbHost` for `dbPassword`.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mooring.masking import MASK, clear_secrets, is_hidden, is_secret, masked, masked_field
from mooring.model import JSON
from mooring.tenants.document import Document
from mooring.tenants.keys import kind_of
from mooring.tenants.publish.merge import PASSWORD
from mooring.tenants.publish.plan import Parts
from mooring.tenants.validation import EXTRA, FIELDS

_WHERE = re.compile(
    r"host|ur[il]s?$|endpoint|addr|server|socket|broker|gateway|webhook|callback|dsn"
    r"|conn(ection)?[_-]?str",
    re.IGNORECASE,
)
_HOW = re.compile(r"driver|dialect|protocol|scheme|ssl|tls|proxy|redirect|issuer", re.IGNORECASE)
_PERHAPS = re.compile(  # a place where it is a text
    r"target|relay|upstream|domain|peer|destination|remote|forward|mirror|bootstrap|hook|sentinel"
    r"|resolver|dns|origin(?!al)",
    re.IGNORECASE,
)
_IP = re.compile(r"(^|[^A-Za-z])(ip|IP|Ip)s?([^a-z]|$)|I[pP]s?([^a-z]|$)")
_PORT = re.compile(r"(^|[^A-Za-z])[pP](ort|ORT)s?([^a-z]|$)|Ports?([^a-z]|$)")
_ACCOUNT = re.compile(r"database|db[_-]?name|user", re.IGNORECASE)
_STRUCTURE = re.compile(r"[:/@?=;&(]")  # by which a name becomes a part of an address
_HOST = r"(?:[\w-]+\.)+(?:[^\W\d_]{2,63}|xn--[\w-]+)\.?|(?:\d{1,3}\.){3}\d{1,3}|\[[\da-fA-F:.]+\]"
_ADDRESS = re.compile(
    rf"(?:{_HOST}|localhost)(?::\d{{1,5}})?|[\w.-]*[^\W\d][\w.-]*:\d{{1,5}}", re.IGNORECASE
)
_LONGEST = 300  # characters of a host's name and port, and some more
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_OF_A_DRIVER = re.compile(r"@\w{0,20}\(")  # u:pw@tcp(host:3306)/name
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]++)\s*+=")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_ANYBODYS = frozenset({"api", "base", "main", "primary", "default", "access", "client"})
_NO_PLACES = frozenset({"weight", "enabled", "zone", "metadata"})  # of a configuration

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


def of_config(there: Object, told: Object) -> Diversion | None:
    """The first one in a whole configuration, as it would be, in the place of what is there."""
    moved = {
        name: where
        for name in {**there, **told}
        if name not in _NO_PLACES and (where := _moved("", _only(name, there), _only(name, told)))
    }
    settled = {_prefix(name) for name, value in there.items() if _is_where(name, value)}
    for name in there:
        own = _prefix(name)
        wheres = (
            where
            for other, where in moved.items()
            if own not in settled or _prefix(other) in ("", own)
        )
        one, another = _only(name, there), _only(name, told)
        found = next(_diversions("", one, another, next(wheres, "")), None)
        if found is not None:
            return found
    return None


def _only(name: str, value: Object) -> Object:
    return {name: value[name]} if name in value else {}


def _is_where(name: str, value: JSON) -> bool:
    """Whether it says where something is sent, and not only how."""
    return isinstance(value, str) and (_says_where(name) or _is_address(name, value))


def _prefix(name: str) -> str:
    """What a name says that it belongs to, such as the `db` of `dbHost`. Empty: it may belong to
    anything; so it is compared with all."""
    first, *more = _WORDS.findall(name) or [""]
    if not more or first.lower() in _ANYBODYS or _may_be_place(first):
        return ""
    return str(first.lower())


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
        new, place = told.get(name), _at(path, name)
        if is_hidden(name) and new == MASK:
            if moved and old not in (None, ""):
                yield Diversion(place, moved)
        else:
            yield from _below(place, old, new, moved)


def _below(path: str, old: JSON, new: JSON, moved: str) -> Iterator[Diversion]:
    if isinstance(old, dict) and isinstance(new, dict):
        own = any(map(_says_where, old))
        yield from _diversions(path, old, new, _moved(path, old, new) if own else moved)
    elif isinstance(old, list) and isinstance(new, list):
        for n, pair in enumerate(_pairs(old, new)):
            yield from _below(f"{path}[{n}]", *pair, moved)


def is_place(name: str) -> bool:
    """Whether a field's name says that it is where something is sent, or how."""
    found = _WHERE.search(name) or _HOW.search(name) or _PORT.search(name)
    return found is not None and not is_secret(name)


def _says_where(name: str) -> bool:
    return _WHERE.search(name) is not None and not is_secret(name)


def _may_be_place(name: str) -> bool:
    """Whether a text of this name is a place; a number or a flag need not be one."""
    found = _PERHAPS.search(name) or _IP.search(name)
    return is_place(name) or (found is not None and not is_secret(name))


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _stands_alone(value: Object) -> bool:
    """Whether it has both a place and a secret of its own: then it says nothing of others'."""
    return any(map(_says_where, value)) and any(map(is_hidden, value))


def _moved(path: str, there: Object, told: Object) -> str:
    return next(_moves(path, there, told, within=False), "")


def _moves(
    path: str, there: Object, told: Object, *, within: bool, concealed: bool = False
) -> Iterator[str]:
    """What changes of all places below. `within`: a place is what this is all about. What is not
    shown, such as all that is `concealed`, counts as changed if it is sent in clear text: the
    caller must not learn whether a guess is right."""
    for name in {**there, **told}:
        old, new = there.get(name), told.get(name)
        kept = old is not None and new == masked_field(name, old)
        same = new == old and not any(clear_secrets({name: new}))
        if (kept or same) and not concealed:
            continue
        yield from _change(_at(path, name), name, old, new, within=within, concealed=concealed)


def _change(
    path: str, name: str, old: JSON, new: JSON, *, within: bool, concealed: bool
) -> Iterator[str]:
    here = within or _may_be_place(name)
    concealed = concealed or is_hidden(name)
    if isinstance(old, dict) and _stands_alone(old) and isinstance(new, dict | None):
        return
    if isinstance(old, dict | None) and isinstance(new, dict | None):
        yield from _moves(path, old or {}, new or {}, within=here, concealed=concealed)
    elif isinstance(old, list | None) and isinstance(new, list | None):
        for n, (one, other) in enumerate(_pairs(old or [], new or [])):
            same = other == one and not any(clear_secrets({"": other}))
            if concealed or not (same or other == masked(one)):
                place = f"{path}[{n}]"
                yield from _change(place, name, one, other, within=within, concealed=concealed)
    elif is_place(name) or any(_is_text_of_place(name, each, here) for each in (old, new)):
        yield path


def _is_text_of_place(name: str, value: JSON, here: bool) -> bool:
    if is_hidden(name):
        return False  # who says a secret anew sends no other one anywhere
    return isinstance(value, str) and (here or _is_address(name, value))


def _is_address(name: str, value: JSON) -> bool:
    if not isinstance(value, str):
        return False
    account = _ACCOUNT.search(name) is not None and _STRUCTURE.search(value) is not None
    return account or looks_like_place(value)


def looks_like_place(text: str) -> bool:
    """Whether a text is an address: a URL, an IP, a host's name with a dot or a port, some of them,
    or an assignment of one. A sentence that speaks of one is none."""
    if "://" in text or text.startswith(("//", "\\\\")) or _OF_A_DRIVER.search(text):
        return True
    if any(is_place(name) for name in _ASSIGNED.findall(text)):
        return True
    parts = (part.split() for part in re.split("[,;]", text))
    return any(bool(words) and all(map(_is_one, words)) for words in parts)


def _is_one(word: str) -> bool:
    host = _END_OF_AUTHORITY.split(word, maxsplit=1)[0].rpartition("@")[2]
    if len(host) > _LONGEST:
        return False
    if _ADDRESS.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return not host.isdigit()


def _pairs(old: list[JSON], new: list[JSON]) -> Iterator[tuple[JSON, JSON]]:
    return itertools.zip_longest(old, new)
