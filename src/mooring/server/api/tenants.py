"""Tenants: list, show, publish, compare, delete. See `tenant_history` for what they were.

A document is what `mooring tenant publish` takes from a file. Secrets are masked, and a mask that
is sent back stands for what is there. Where an optional dependency is missing that a password
needs, the answer is 409 and names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from mooring.errors import NotConfigured, Taken
from mooring.messages import Message
from mooring.server.api.lookup import store_of
from mooring.server.api.tenant_list import TenantSummary, read_tenants
from mooring.server.api.unmasking import OPENED, Unmasking, allow_unmasking, may_unmask
from mooring.server.auth.authorization import READING, need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response, matches
from mooring.server.http.routing import ApiRoute
from mooring.tenants.diff import Action, changes_to_json, masked_document, unmask_document
from mooring.tenants.document import Document, parse
from mooring.tenants.keys import AREAS, Area, Owner, TenantKeys, check_id, is_area, named
from mooring.tenants.parts import NOTHING_RESENT, PartDiff, Parts, Resent, StoredParts, stored_parts
from mooring.tenants.publish.publish_state import PublishResult
from mooring.tenants.publish.publisher import Publisher, Require
from mooring.tenants.redirect_guard import redirect_in_document
from mooring.tenants.secrets import Keyring

LOOKING = need("viewer", "tenant")
PUBLISHING = need("operator", "tenant")

TENANT = "/admin/tenants/{tenant}"
_DIGITS = 20  # of a number in the order of text

Note = Annotated[str, msgspec.Meta(max_length=1000)]
Section = dict[str, Any] | None | msgspec.UnsetType


class Filter(Page, frozen=True, kw_only=True):
    code: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Those whose code has this in it, in whatever case."""
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """The same of the name."""
    status: Annotated[str, msgspec.Meta(max_length=20)] = ""
    """active, inactive or suspended."""


class TenantDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As in a tenant's file. A section that is left out stays as it is, an empty one is removed."""

    id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | msgspec.UnsetType = msgspec.UNSET
    """It may be left out: the path says it."""
    meta: Section = msgspec.UNSET
    domain: Section = msgspec.UNSET
    database: Section = msgspec.UNSET
    ftp: Section = msgspec.UNSET
    storage: Section = msgspec.UNSET

    def __repr__(self) -> str:
        return f"<document of tenant {self.id}>"  # the rest may be secret


class TenantShown(msgspec.Struct, frozen=True, kw_only=True):
    tenant: int
    revision: str
    """What tells this state from others: send it as `base`, or the ETag as If-Match."""
    document: dict[str, Any]
    problems: list[str]
    """What cannot be understood or decrypted."""

    def __repr__(self) -> str:
        return f"<tenant {self.tenant} at {self.revision}>"


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    action: Action
    before: Any
    after: Any
    sensitive: list[str]
    """Fields that change and are not shown."""


class PublishedShown(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, or would be."""

    tenant: int | None
    """Null for what all tenants share."""
    area: Area | None
    """Of what all tenants share; null for a tenant."""
    version: int | None
    """Of the history; null where nothing was changed, or nothing was to be."""
    transactions: int
    """More than one where it was too large for one: readers may have seen it in between."""
    changes: list[PartChange]
    lost: list[str]
    """What a rollback could not bring back."""
    warnings: list[str] = []
    """What an operator should know, such as a password that is stored in clear text, in English."""
    messages: list[Message] = []
    """The warnings as data."""


class Noted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Note = ""
    """Why, for the history and the audit."""


Base = Annotated[str, msgspec.Meta(max_length=100)]


class Publishing(Noted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    base: Base = ""
    """The `revision` that the caller saw: 409 if the tenant has changed since."""


async def list_tenants(call: ApiCall) -> Response:
    asked: Filter = call.query
    found = [
        tenant
        for tenant in await read_tenants(store_of(call), keys_of(call))
        if call.principal.sees_tenant(tenant.id)
        and asked.code.casefold() in (tenant.code or "").casefold()
        and asked.name.casefold() in (tenant.name or "").casefold()
        and asked.status in ("", tenant.status)
    ]
    page = msgspec.structs.replace(asked, after=padded(asked.after))
    some, headers = cut(found, page, lambda each: padded(str(each.id)), path=call.here)
    return Response(some, headers=headers)


def padded(number: str) -> str:
    """Numbers in the order of text."""
    return number.zfill(_DIGITS) if number else ""


async def show_tenant(call: ApiCall) -> Response:
    unmask = call.query.unmask
    if unmask:
        allow_unmasking(call)
    found = await _held(call)
    if not found.parts:
        raise NotConfigured(f"there is no tenant {call.tenant}")
    told = masked_document(call.tenant, found.parts, Keyring.from_environment() if unmask else None)
    revision = found.revision
    answer = TenantShown(
        tenant=call.tenant, revision=revision, document=told.document, problems=told.problems
    )
    headers = OPENED if unmask else {}
    return Response(answer, headers=headers, etag=f"{revision}{'-unmasked' * unmask}")


async def _held(call: ApiCall) -> StoredParts:
    keys, tenant = keys_of(call), check_id(call.tenant)
    found = await store_of(call).read(keys.parts(tenant))
    return stored_parts(keys, tenant, found.entries)


def keys_of(call: ApiCall) -> TenantKeys:
    return TenantKeys(call.server.hub.tenants_namespace)


def publisher_of(call: ApiCall, ring: Keyring) -> Publisher:
    store_of(call)
    return call.server.hub.publisher(by=call.principal.name, keyring=ring)


def _document(call: ApiCall) -> Document:
    tenant = check_id(call.tenant)
    told: dict[str, Any] = {
        name: value
        for name in TenantDocument.__struct_fields__
        if (value := getattr(call.body, name)) is not msgspec.UNSET
    }
    if told.setdefault("id", tenant) != tenant:
        raise HTTPError(
            400, "bad_request", f"the document is of tenant {told['id']}, the path of {tenant}"
        )
    return parse(told)


async def publish(call: ApiCall) -> Response:
    document, ring = _document(call), Keyring.from_environment()
    publisher, resent = publisher_of(call, ring), _resent(call, document)
    condition = precondition(call, call.query.base)
    existed = False

    def require(there: StoredParts) -> None:
        nonlocal existed
        condition(there)
        existed = bool(there.parts)

    def change(there: Parts) -> Parts:
        return _restored(call, document, there).applied(there, ring, reseal=bool(resent))

    with discreet(call):
        published = await publisher.change(
            document.tenant, change, note=reason(call), require=require, resent=resent
        )
    tell(call, published)
    created = published.number and not existed
    return Response(published_shown(published), 201 if created else 200)


def _resent(call: ApiCall, document: Document) -> Resent:
    """Secrets that count as changed: the caller sends them in clear text, may not see those that
    are there, and must not learn whether they are the same."""
    return NOTHING_RESENT if may_unmask(call) else document.cleartext_secrets


def _restored(call: ApiCall, document: Document, there: Parts) -> Document:
    """The document with what is there in place of its masks. Raises `HTTPError` where somebody who
    may not see a secret would have it sent elsewhere."""
    redirect = redirect_in_document(document, there)
    if redirect is not None and not may_unmask(call):
        raise HTTPError(409, "conflict", f"tenant {document.tenant}: {redirect}")
    return unmask_document(document, there)


@contextlib.contextmanager
def discreet(call: ApiCall) -> Iterator[None]:
    """Whose a name is that is taken is told to those who may see that tenant."""
    try:
        yield
    except Taken as error:
        if call.principal.sees_tenant(error.holder):
            raise
        message = f"tenant {call.tenant}: {error.claim or 'a name'} is taken already"
        raise HTTPError(409, "taken", message) from None


def owner_of(call: ApiCall) -> Owner:
    """The tenant or the area that the path names. Raises `HTTPError`."""
    if "area" not in call.path:
        return check_id(call.tenant)
    area = call.path["area"]
    if not is_area(area):
        known = ", ".join(AREAS)
        raise HTTPError(404, "not_found", f"no area {area[:40]} is shared: there are {known}")
    return area


def precondition(call: ApiCall, base: str = "", path: str = "") -> Require:
    """A check of `If-Match`, `If-None-Match` and `base` against the stored state. It raises
    `HTTPError` (409, 412) if they do not hold. `path` names a single part, if the request is about
    one."""
    expected = call.request.headers.get("if-match", "")
    unwanted = call.request.headers.get("if-none-match", "")
    owner = owner_of(call)

    def check(there: StoredParts) -> None:
        etag = f'"{there.revision}"'
        exists = path in there.parts if path else bool(there.parts)
        if unwanted and exists and matches(unwanted, etag):
            message = f"{path or named(owner)} exists already: open it and edit it instead"
            raise HTTPError(412, "conflict", message)
        moved = f"{named(owner)}: changed since you read it; read it again and merge your change"
        if expected and not ((exists or is_area(owner)) and matches(expected, etag)):
            raise HTTPError(412, "conflict", moved)
        if base and base != there.revision:
            raise HTTPError(409, "conflict", moved)

    return check


def reason(call: ApiCall) -> str:
    told: str = call.query.reason
    if told:
        call.notes["reason"] = told
    return told


def tell(call: ApiCall, published: PublishResult) -> None:
    """For the audit."""
    call.notes["version"] = published.number or None
    call.notes["changed"] = [each.path for each in published.changes][:100]


def published_shown(published: PublishResult) -> PublishedShown:
    owner = published.tenant
    return PublishedShown(
        tenant=owner if isinstance(owner, int) else None,
        area=owner if is_area(owner) else None,
        version=published.number or None,
        transactions=published.transactions + published.aside,
        changes=_changes(published.changes),
        lost=list(published.lost),
        warnings=list(published.remarks),
        messages=list(published.messages),
    )


def would_change(owner: Owner, changes: list[PartDiff]) -> PublishedShown:
    return published_shown(PublishResult(owner, tuple(changes)))


def _changes(found: list[PartDiff] | tuple[PartDiff, ...]) -> list[PartChange]:
    return msgspec.convert(changes_to_json(found), list[PartChange])


async def diff(call: ApiCall) -> Response:
    document, ring = _document(call), Keyring.from_environment()
    publisher = publisher_of(call, ring)
    there = await publisher.read(document.tenant)
    with discreet(call):
        found = await publisher.diff(
            _restored(call, document, there), resent=_resent(call, document)
        )
    call.notes["dry"] = True
    return Response(would_change(document.tenant, found))


async def delete(call: ApiCall) -> Response:
    ring = Keyring.from_environment()
    published = await publisher_of(call, ring).delete(
        check_id(call.tenant), note=reason(call), require=precondition(call, call.query.base)
    )
    tell(call, published)
    return Response(published_shown(published))


NO_STORE = 409
"""There are tenants only where there is a store."""

ENDPOINTS = (
    ApiRoute(
        "GET",
        "/admin/tenants",
        READING,
        list_tenants,
        ("List the tenants the caller may see, by id. 409: the server has no store, only Redis"),
        query=Filter,
        answers={200: list[TenantSummary]},
        fails=(NO_STORE,),
    ),
    ApiRoute(
        "GET",
        TENANT,
        LOOKING,
        show_tenant,
        "Get the configuration of a tenant, secrets masked",
        query=Unmasking,
        answers={200: TenantShown},
        fails=(NO_STORE,),
    ),
    ApiRoute(
        "PUT",
        TENANT,
        PUBLISHING,
        publish,
        (
            "Publish a tenant. 409: changed since `base`, a name is taken, or password "
            "encryption is not installed; 412: If-Match or If-None-Match does not hold"
        ),
        query=Publishing,
        body=TenantDocument,
        answers={200: PublishedShown, 201: PublishedShown},
        fails=(412,),
    ),
    ApiRoute(
        "POST",
        f"{TENANT}/diff",
        PUBLISHING,
        diff,
        "Preview a publish; nothing is written except an audit entry",
        body=TenantDocument,
        answers={200: PublishedShown},
    ),
    ApiRoute(
        "DELETE",
        TENANT,
        PUBLISHING,
        delete,
        "Delete a tenant with its indexes; the history is kept. 409, 412: see PUT",
        query=Publishing,
        answers={200: PublishedShown},
        fails=(412,),
    ),
)
