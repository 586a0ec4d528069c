"""Refuses changes that could send a kept secret elsewhere.

A caller that may not read a secret sends a mask in its place, or leaves it out, and the secret is
kept. If such a caller could change what surrounds the secret, it could redirect it to a host of its
own. So there is one rule: a value that holds a kept secret changes only in the fields of an
allow-list. Any other change requires all its secrets to be restated. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mooring.masking import MASK, masked, masked_field, masked_names
from mooring.messages import Message, message
from mooring.model import JSON, path_text
from mooring.tenants.document import Document
from mooring.tenants.keys import identity, kind_of
from mooring.tenants.parts import Parts
from mooring.tenants.publish.merge import password_fields
from mooring.tenants.validation import EXTRA, FIELDS

ALLOWED = frozenset(
    {
        # of instances and services
        "enabled",
        "weight",
        "zone",
        "metadata",
        "description",
        "displayName",
        # of tenants
        "status",
        "billingPlan",
        "homeDirectory",
        "writePermission",
        "uploadQuotaGb",
        "maxFileSizeMb",
        "maxConcurrentUploads",
        "maxOpenConns",
        "maxIdleConns",
        "passwordEncrypted",
        "passwordKeyId",
        # of whatever else is configured
        "limit",
        "plan",
        "poolSize",
        "priority",
        "retries",
        "timeout",
        "tries",
        # other secrets; `tokenUrl`, `dsn` and `credentials` are none: they can contain an address
        "password",
        "passwordHash",
        "passphrase",
        "secret",
        "clientSecret",
        "dbPassword",
        "token",
        "accessToken",
        "apiToken",
        "apiKey",
    }
)
"""Fields that may change beside a kept secret if their new value is neither a map nor a list: no
program takes an address from them. `docs/access.md` lists them."""

_FREE = "metadata"
"""The allowed field that may hold anything."""


class _Field(NamedTuple):
    path: tuple[str, ...]
    """Its names from the outside in, `[0]` for an element of a list."""
    kept: bool
    """Whether it is a secret that is kept; otherwise it changes."""
    nested: bool = False
    """Whether it changes to a map or list."""

    def within(self, about: str) -> str:
        names = path_text(self.path)
        return f"{about}{names}" if about else names.removeprefix(".")


def redirect_in_document(document: Document, stored: Parts) -> Message | None:
    """The first redirect in a document, as the caller sent it, over the tenant's stored parts."""
    redirects = (
        redirect_in_value(path, old, _completed(document.tenant, path, old, sent))
        for section in document.sections.values()
        for path, sent in section.items()
        if isinstance(sent, dict) and isinstance(old := stored.get(path), dict)
    )
    return next(filter(None, redirects), None)


def _completed(
    tenant: int, path: str, old: Mapping[str, JSON], sent: Mapping[str, JSON]
) -> dict[str, JSON]:
    """A part with what a publish adds: the fields that its key repeats, and masks for the secrets
    and unknown fields that it keeps."""
    kept = {name: inner for name, inner in old.items() if name not in FIELDS[kind_of(path)]}
    if sent.get("password") in (None, MASK) and not sent.get("passwordEncrypted"):
        kept |= password_fields(old)
    if sent.get("passwordHash") is None and old.get("passwordHash"):
        kept["passwordHash"] = old["passwordHash"]
    masks = {name: masked_field(name, inner) for name, inner in kept.items()}
    extra = sent.get(EXTRA)
    given = {name: inner for name, inner in sent.items() if name not in (EXTRA, *kept)}
    more = extra if isinstance(extra, dict) else {}
    return {**identity(tenant, path), **masks, **given, **more}


def redirect_in_value(about: str, old: JSON, sent: JSON) -> Message | None:
    """The first redirect in a whole value, as the caller sent it, in place of the old one."""
    fields = list(_compare((), old, masked(old), sent))
    changes = [field for field in fields if not field.kept]
    redirects = [
        (secret, change)
        for secret in fields
        if secret.kept
        for change in changes
        if not _is_allowed(change, secret.path)
    ]
    if not redirects:
        return None
    # The error names the two that are closest to one another.
    secret, change = max(redirects, key=lambda pair: _shared(pair[0].path, pair[1].path))
    return message("redirect", secret=secret.within(about), changed=change.within(about))


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many names two paths begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_allowed(change: _Field, secret: tuple[str, ...]) -> bool:
    path = change.path
    if any(
        name == _FREE and path[: depth + 1] != secret[: depth + 1]
        for depth, name in enumerate(path)
    ):
        return True
    return bool(path) and not change.nested and path[-1] in ALLOWED


def _compare(path: tuple[str, ...], old: JSON, shown: JSON, sent: JSON) -> Iterator[_Field]:
    """Compares what the caller sends with what it is `shown`, never with the old value itself: a
    caller must not learn whether its guess of a secret is right."""
    if isinstance(old, list) and isinstance(sent, list) and len(old) == len(sent):
        old, shown, sent = _numbered(old), _numbered(shown), _numbered(sent)
    if isinstance(old, dict) and isinstance(sent, dict):
        for name, label in masked_names({**old, **sent}).items():
            inner = shown.get(name) if isinstance(shown, dict) else MASK
            yield from _compare((*path, label), old.get(name), inner, sent.get(name))
    elif _or_none(sent) != _or_none(shown):
        yield _Field(path, kept=False, nested=isinstance(sent, dict | list))
    elif sent != old and old not in (None, ""):
        yield _Field(path, kept=True)


def _numbered(value: JSON) -> JSON:
    """A list as a map, with `[0]` as the name of its first element."""
    if not isinstance(value, list):
        return value
    return {f"[{number}]": inner for number, inner in enumerate(value)}


def _or_none(value: JSON) -> JSON:
    return None if value == "" else value
