"""Tenants: list, show, publish, compare and delete. `tenant_history` has their history.

The documents have the format of `mooring tenant publish`. Secrets are masked, and a mask in a
published document keeps the stored secret. If password encryption is required but not installed,
the response is 409 with the name of the missing extra.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from mooring.errors import NotConfigured, Taken
from mooring.messages import Message, message
from mooring.server.api.endpoint import NO_STORE, UNMASKED, ApiCall, EndpointList, UnmaskQuery
from mooring.server.auth.authorization import READING, need
from mooring.server.http.request import PageQuery, paginate
from mooring.server.http.response import HTTPError, Response, etag_matches
from mooring.store.contract import Store
from mooring.tenants.diff import DiffAction, changes_to_json, masked_document, unmask_document
from mooring.tenants.document import Document, parse
from mooring.tenants.keys import (
    AREAS,
    DOMAIN,
    Area,
    Owner,
    PartOf,
    TenantKeys,
    check_id,
    is_area,
    kind_of,
    named,
)
from mooring.tenants.model import UnreadableValue, decode
from mooring.tenants.parts import NOTHING_RESENT, PartDiff, Parts, Resent, StoredParts, read_parts
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.publish.result import PublishResult
from mooring.tenants.redirect_guard import redirect_in_document
from mooring.tenants.secrets import Keyring

endpoints = EndpointList(fails=(NO_STORE,))

READ_TENANT = need("viewer", "tenant")
PUBLISH_TENANT = need("operator", "tenant")

TENANT = "/admin/tenants/{tenant}"
_DIGITS = 20  # of the largest number

Note = Annotated[str, msgspec.Meta(max_length=1000)]
BaseRevision = Annotated[str, msgspec.Meta(max_length=100)]
TenantSection = dict[str, Any] | None | msgspec.UnsetType


class TenantsQuery(PageQuery, frozen=True, kw_only=True):
    code: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """A substring of the code, ignoring case."""
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """A substring of the name, ignoring case."""
    status: Annotated[str, msgspec.Meta(max_length=20)] = ""
    """active, inactive or suspended."""


class TenantSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    id: int
    code: str | None
    name: str | None
    status: str | None
    primary_domain: str | None
    hosts: tuple[str, ...]
    databases: int
    ftp_users: int
    problems: int
    """Unreadable parts, of those that a summary contains."""


class TenantDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document of a tenant's file. Omitted sections stay, empty ones are removed."""

    id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | msgspec.UnsetType = msgspec.UNSET
    """Optional, because the path contains it."""
    meta: TenantSection = msgspec.UNSET
    domain: TenantSection = msgspec.UNSET
    database: TenantSection = msgspec.UNSET
    ftp: TenantSection = msgspec.UNSET
    storage: TenantSection = msgspec.UNSET

    def __repr__(self) -> str:
        return f"<document of tenant {self.id}>"  # the sections may contain secrets


class TenantDetail(msgspec.Struct, frozen=True, kw_only=True):
    tenant: int
    revision: str
    """Identifies this state: send it as `base`, or the ETag as If-Match."""
    document: dict[str, Any]
    problems: list[Message]
    """Parts that cannot be read or decrypted."""

    def __repr__(self) -> str:
        return f"<tenant {self.tenant} at {self.revision}>"


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    action: DiffAction
    before: Any
    after: Any
    sensitive: list[str]
    """Secret fields that change; their values are omitted."""


class PublishReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, or would be written."""

    tenant: int | None
    """Null for the shared configuration."""
    area: Area | None
    """The area of the shared configuration; null for a tenant."""
    version: int | None
    """The version in the history; null if nothing changed, or for a preview."""
    transactions: int
    """If more than one, readers may have seen a part of the change."""
    changes: list[PartChange]
    lost: list[str]
    """What a rollback could not restore."""
    warnings: list[Message] = []
    """Warnings for the operator, such as a password that is stored in clear text."""


class PublishQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Note = ""
    """For the history and the audit log."""
    base: BaseRevision = ""
    """The `revision` that the caller read: 409 if the tenant has changed since."""


publication = partial(endpoints.add, needs=PUBLISH_TENANT, query=PublishQuery, fails=(412,))
"""Declares a change of a tenant, which may have preconditions."""


@endpoints.add(
    "GET", "/admin/tenants", READING, query=TenantsQuery, answers={200: list[TenantSummary]}
)
async def list_tenants(call: ApiCall) -> Response:
    """List the tenants the caller may see, by id. 409: the server has no store, only Redis."""
    query: TenantsQuery = call.query
    tenants = [
        tenant
        for tenant in await read_tenants(call.server.store, keys_of(call))
        if call.principal.sees_tenant(tenant.id)
        and query.code.casefold() in (tenant.code or "").casefold()
        and query.name.casefold() in (tenant.name or "").casefold()
        and query.status in ("", tenant.status)
    ]
    query = msgspec.structs.replace(query, after=zero_padded(query.after))
    page, headers = paginate(
        tenants, query, lambda tenant: zero_padded(str(tenant.id)), path=call.raw_path
    )
    return Response(page, headers=headers)


def zero_padded(number: str) -> str:
    """A number whose order as text is its numeric order."""
    return number.zfill(_DIGITS) if number else ""


async def read_tenants(store: Store, keys: TenantKeys) -> list[TenantSummary]:
    """The summaries of all tenants by id, read at once."""
    tenants: dict[int, dict[str, bytes]] = {}
    for entry in (await store.read(keys.all)).entries:
        place = keys.understand(entry.key)
        if isinstance(place, PartOf):
            tenants.setdefault(place.tenant, {})[place.path] = entry.value
    return [_summary(id, tenants[id]) for id in sorted(tenants)]


def _summary(id: int, parts: Mapping[str, bytes]) -> TenantSummary:
    values: dict[str, Any] = {}
    problems = 0
    for path in ("meta", *DOMAIN):
        if path in parts:
            try:
                values[path] = decode(path, parts[path])
            except UnreadableValue:
                problems += 1
    meta = values["meta"] if isinstance(values.get("meta"), dict) else {}
    texts = {name: text for name, text in meta.items() if text and isinstance(text, str)}
    hosts = {path: _hosts(values.get(path)) for path in DOMAIN}
    kinds = Counter(map(kind_of, parts))
    return TenantSummary(
        id=id,
        code=texts.get("code"),
        name=texts.get("name"),
        status=texts.get("status") or ("active" if meta else None),
        primary_domain=next(iter(hosts["domain/primary"]), None),
        hosts=tuple(host for path in DOMAIN for host in hosts[path]),
        databases=kinds["database"],
        ftp_users=kinds["ftp"],
        problems=problems,
    )


def _hosts(value: object) -> list[str]:
    hosts = value if isinstance(value, list) else [value]
    return [host for host in hosts if isinstance(host, str) and host]


@endpoints.add("GET", TENANT, READ_TENANT, query=UnmaskQuery, answers={200: TenantDetail})
async def get_tenant(call: ApiCall) -> Response:
    """Get the configuration of a tenant, secrets masked."""
    unmask = call.unmasks()
    keys, tenant = keys_of(call), check_id(call.tenant)
    stored = await read_parts(call.server.store, keys, tenant)
    if not stored.parts:
        raise NotConfigured(message("not_found", what=named(tenant)))
    masked = masked_document(tenant, stored.parts, Keyring.from_environment() if unmask else None)
    detail = TenantDetail(
        tenant=tenant,
        revision=stored.revision,
        document=masked.document,
        problems=masked.problems,
    )
    headers = UNMASKED if unmask else {}
    return Response(detail, headers=headers, etag=f"{stored.revision}{'-unmasked' * unmask}")


def keys_of(call: ApiCall) -> TenantKeys:
    return TenantKeys(call.server.hub.tenants_namespace)


def publisher_of(call: ApiCall, keyring: Keyring) -> Publisher:
    """A publisher in the name of the caller. Raises `HTTPError` (409) if there is no store."""
    call.server.store  # noqa: B018 - raises if there is none
    return call.server.hub.publisher(by=call.principal.name, keyring=keyring)


def _document(call: ApiCall) -> Document:
    tenant = check_id(call.tenant)
    sections: dict[str, Any] = {
        name: value
        for name in TenantDocument.__struct_fields__
        if (value := getattr(call.body, name)) is not msgspec.UNSET
    }
    if sections.setdefault("id", tenant) != tenant:
        raise HTTPError(
            400,
            "bad_request",
            "tenant_of_another_path",
            document=sections["id"],
            path=tenant,
        )
    return parse(sections)


@publication("PUT", TENANT, body=TenantDocument, answers={200: PublishReport, 201: PublishReport})
async def publish(call: ApiCall) -> Response:
    """Publish a tenant. 409: changed since `base`, a name is taken, or password encryption is not
    installed; 412: If-Match or If-None-Match does not hold."""
    document, keyring = _document(call), Keyring.from_environment()
    publisher, resent = publisher_of(call, keyring), _resent(call, document)
    precondition = Precondition(call, call.query.base)

    def change(stored: Parts) -> Parts:
        return _unmask(call, document, stored).applied(stored, keyring, reseal=bool(resent))

    with hide_holder(call):
        result = await publisher.change(
            document.tenant, change, note=call.note_reason(), require=precondition, resent=resent
        )
    created = result.number and not precondition.existed
    return publish_response(call, result, 201 if created else 200)


def _resent(call: ApiCall, document: Document) -> Resent:
    """Secrets that count as changed even if they equal the stored ones: a caller that may not read
    the stored secrets must not learn whether they are the same."""
    return NOTHING_RESENT if call.may_unmask else document.cleartext_secrets


def _unmask(call: ApiCall, document: Document, stored: Parts) -> Document:
    """The document with masks replaced by the stored secrets. Raises `HTTPError` (409) if a caller
    that may not read a secret would redirect it to another host."""
    redirect = redirect_in_document(document, stored)
    if redirect is not None and not call.may_unmask:
        owner = named(document.tenant)
        raise HTTPError(409, "conflict", "of_owner", owner=owner, problem=redirect)
    return unmask_document(document, stored)


@contextlib.contextmanager
def hide_holder(call: ApiCall) -> Iterator[None]:
    """Hide the holder of a taken name from callers that may not access that tenant."""
    try:
        yield
    except Taken as error:
        if call.principal.sees_tenant(error.holder):
            raise
        problem = message("claim_held", claim=error.claim or message("a_name"))
        owner = named(call.tenant)
        raise HTTPError(409, "taken", "of_owner", owner=owner, problem=problem) from None


def owner_of(call: ApiCall) -> Owner:
    """The tenant or the area in the path. Raises `HTTPError` (400, 404)."""
    if "area" not in call.path:
        return check_id(call.tenant)
    area = call.path["area"]
    if not is_area(area):
        raise HTTPError(404, "not_found", "area_not_found", area=area, known=list(AREAS))
    return area


class Precondition:
    """The `If-Match`, `If-None-Match` and `base` of a call. Calling it with the stored state raises
    `HTTPError` (409, 412) if they do not hold. `path` names a single part if the call is about
    one."""

    def __init__(self, call: ApiCall, base: str = "", path: str = "") -> None:
        self._match = call.request.headers.get("if-match", "")
        self._none_match = call.request.headers.get("if-none-match", "")
        self._owner, self._base, self._path = owner_of(call), base, path
        self.existed = False
        """Whether the tenant, or the part, existed when it was last called."""

    def __call__(self, stored: StoredParts) -> None:
        etag, owner = f'"{stored.revision}"', self._owner
        self.existed = self._path in stored.parts if self._path else bool(stored.parts)
        if self._none_match and self.existed and etag_matches(self._none_match, etag):
            what = self._path or named(owner)
            raise HTTPError(412, "conflict", "already_exists", what=what)
        changed = message("changed_since_read", owner=named(owner))
        exists = self.existed or is_area(owner)
        if self._match and not (exists and etag_matches(self._match, etag)):
            raise HTTPError(412, "conflict", changed)
        if self._base and self._base != stored.revision:
            raise HTTPError(409, "conflict", changed)


def publish_response(call: ApiCall, result: PublishResult, status: int = 200) -> Response:
    """Report a publish to the caller and to the audit."""
    call.notes["version"] = result.number or None
    call.notes["changed"] = [change.path for change in result.changes][:100]
    return Response(_report(result), status)


def preview_response(owner: Owner, changes: Sequence[PartDiff]) -> Response:
    return Response(_report(PublishResult(owner, tuple(changes))))


def _report(result: PublishResult) -> PublishReport:
    owner = result.tenant
    return PublishReport(
        tenant=owner if isinstance(owner, int) else None,
        area=owner if is_area(owner) else None,
        version=result.number or None,
        transactions=result.transactions,
        changes=part_changes(result.changes),
        lost=list(result.lost),
        warnings=list(result.remarks),
    )


def part_changes(changes: Sequence[PartDiff]) -> list[PartChange]:
    return msgspec.convert(changes_to_json(changes), list[PartChange])


@endpoints.add(
    "POST",
    f"{TENANT}/diff",
    PUBLISH_TENANT,
    body=TenantDocument,
    answers={200: PublishReport},
)
async def diff(call: ApiCall) -> Response:
    """Preview a publish; nothing is written except an audit entry."""
    document = _document(call)
    publisher = publisher_of(call, Keyring.from_environment())
    stored = await publisher.read(document.tenant)
    with hide_holder(call):
        unmasked = _unmask(call, document, stored)
        changes = await publisher.diff(unmasked, resent=_resent(call, document))
    call.notes["dry"] = True
    return preview_response(document.tenant, changes)


@publication("DELETE", TENANT, answers={200: PublishReport})
async def delete(call: ApiCall) -> Response:
    """Delete a tenant with its indexes; the history is kept. 409, 412: see PUT."""
    publisher = publisher_of(call, Keyring.from_environment())
    precondition = Precondition(call, call.query.base)
    result = await publisher.delete(
        check_id(call.tenant), note=call.note_reason(), require=precondition
    )
    return publish_response(call, result)
