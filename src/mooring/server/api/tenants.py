"""Tenants: list, show, publish, compare, delete, and their history.

A document is what `mooring tenant publish` takes from a file. Secrets are masked, and a mask that
is sent back stands for what is there. Where an optional dependency is missing that a password
needs, the answer is 409 and names it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from mooring.errors import MooringError, NotConfigured, Taken
from mooring.model import JSON
from mooring.server.access.principals import READING, need
from mooring.server.api.known import store_of
from mooring.server.api.tenant_list import TenantSummary, read_tenants
from mooring.server.api.unmasking import OPENED, Unmasking, allow_unmasking, may_unmask
from mooring.server.http.answers import Answer, matches
from mooring.server.http.calls import Call
from mooring.server.http.endpoint import Endpoint
from mooring.server.http.errors import Refused, refusal
from mooring.server.http.paging import Page, cut
from mooring.tenants.changes import Action, records
from mooring.tenants.diversion import of_document, of_value
from mooring.tenants.document import Document, parse
from mooring.tenants.hiding import masked
from mooring.tenants.history import HistoryEntry, differences, omits
from mooring.tenants.keys import Keys, check_id
from mooring.tenants.masks import restored, shown
from mooring.tenants.publisher import Publisher
from mooring.tenants.publishing import Difference, Held, Parts, held
from mooring.tenants.publishing import differences as between
from mooring.tenants.secrets import Keyring
from mooring.tenants.work import Published

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

    tenant: int
    version: int | None
    """Of its history; null where nothing was changed, or nothing was to be."""
    transactions: int
    """More than one where it was too large for one: readers may have seen it in between."""
    changes: list[PartChange]
    lost: list[str]
    """What a rollback could not bring back."""


class Noted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Note = ""
    """Why, for the history and the audit."""


class Publishing(Noted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    base: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The `revision` that the document was made from: 409 where the tenant has changed since."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at: str
    by: str
    action: str
    note: str | None
    paths: list[str]
    """The parts that changed."""


class VersionDetail(Version, frozen=True, kw_only=True):
    changes: list[PartChange]


class RollingBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    """Of the history: it becomes what it was after that; 0: before the first."""
    dry: bool = False
    """Only say what would change."""
    note: Note = ""


async def list_tenants(call: Call) -> Answer:
    asked: Filter = call.query
    found = [
        tenant
        for tenant in await read_tenants(store_of(call))
        if call.principal.sees_tenant(tenant.id)
        and asked.code.casefold() in (tenant.code or "").casefold()
        and asked.name.casefold() in (tenant.name or "").casefold()
        and asked.status in ("", tenant.status)
    ]
    page = msgspec.structs.replace(asked, after=_padded(asked.after))
    some, headers = cut(found, page, lambda each: _padded(str(each.id)), path=call.here)
    return Answer(some, headers=headers)


def _padded(number: str) -> str:
    """Numbers in the order of text."""
    return number.zfill(_DIGITS) if number else ""


async def show_tenant(call: Call) -> Answer:
    unmask = call.query.unmask
    if unmask:
        allow_unmasking(call)
    found = await _held(call)
    if not found.parts:
        raise NotConfigured(f"there is no tenant {call.tenant}")
    told = shown(call.tenant, found.parts, Keyring.from_environment() if unmask else None)
    revision = _revision(found)
    answer = TenantShown(
        tenant=call.tenant, revision=revision, document=told.document, problems=told.problems
    )
    headers = OPENED if unmask else {}
    return Answer(answer, headers=headers, etag=f"{revision}{'-unmasked' * unmask}")


async def _held(call: Call) -> Held:
    keys, tenant = Keys(), check_id(call.tenant)
    found = await store_of(call).read(keys.parts(tenant))
    return held(keys, tenant, found.entries)


def _revision(found: Held) -> str:
    """Of when each part was written, not of what it is: nobody can guess a secret by it."""
    told = "\n".join(f"{path} {number}" for path, number in sorted(found.revisions.items()))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def _publisher(call: Call, ring: Keyring) -> Publisher:
    store_of(call)
    return call.parts.hub.publisher(by=call.principal.name, keyring=ring)


def _document(call: Call) -> Document:
    tenant = check_id(call.tenant)
    told: dict[str, Any] = {
        name: value
        for name in TenantDocument.__struct_fields__
        if (value := getattr(call.body, name)) is not msgspec.UNSET
    }
    if told.setdefault("id", tenant) != tenant:
        raise Refused(
            400, "bad_request", f"the document is of tenant {told['id']}, the path of {tenant}"
        )
    return parse(told)


async def publish(call: Call) -> Answer:
    document, ring = _document(call), Keyring.from_environment()
    publisher = _publisher(call, ring)
    before = await _held(call)
    guarded = _check_base(call, before)

    def change(there: Parts) -> Parts:
        if guarded and between(before.parts, there):
            raise _moved(call)
        return _restored(call, document, there).applied(there, ring)

    with _discreet(call):
        published = await publisher.change(document.tenant, change, note=_reason(call))
    _tell(call, published)
    created = published.number and not before.parts
    return Answer(_published(published), 201 if created else 200)


def _restored(call: Call, document: Document, there: Parts) -> Document:
    """The document with what is there in place of its masks. Raises `Refused` where somebody who
    may not see a secret would have it sent elsewhere."""
    diverted = of_document(document, there)
    if diverted is not None and not may_unmask(call):
        raise Refused(409, "conflict", f"tenant {document.tenant}: {diverted}")
    return restored(document, there)


@contextlib.contextmanager
def _discreet(call: Call) -> Iterator[None]:
    """Whose a name is that is taken is told to those who may see that tenant."""
    try:
        yield
    except Taken as error:
        if call.principal.sees_tenant(error.holder):
            raise
        message = f"tenant {call.tenant}: {error.claim or 'a name'} is taken already"
        raise Refused(409, "taken", message) from None


def _check_base(call: Call, before: Held) -> bool:
    """Whether it is to be written over one state alone. Raises `Refused` where it is another."""
    expected, base = call.request.headers.get("if-match", ""), call.query.base
    revision = _revision(before)
    if expected and not (before.parts and matches(expected, f'"{revision}"')):
        raise _moved(call)
    if base and base != revision:
        raise _moved(call)
    return bool(expected or base)


def _moved(call: Call) -> Refused:
    status = 412 if call.request.headers.get("if-match") else 409
    return Refused(
        status, "conflict", f"tenant {call.tenant} was changed since: look at it again, and merge"
    )


def _reason(call: Call) -> str:
    reason: str = call.query.reason
    if reason:
        call.notes["reason"] = reason
    return reason


def _tell(call: Call, published: Published) -> None:
    """For the audit."""
    call.notes["version"] = published.number or None
    call.notes["changed"] = [each.path for each in published.changes][:100]


def _published(published: Published) -> PublishedShown:
    return PublishedShown(
        tenant=published.tenant,
        version=published.number or None,
        transactions=published.transactions + published.aside,
        changes=_changes(published.changes),
        lost=list(published.lost),
    )


def _would(tenant: int, changes: list[Difference]) -> PublishedShown:
    return PublishedShown(
        tenant=tenant, version=None, transactions=0, changes=_changes(changes), lost=[]
    )


def _changes(found: list[Difference] | tuple[Difference, ...]) -> list[PartChange]:
    return msgspec.convert(records(found), list[PartChange])


async def diff(call: Call) -> Answer:
    """What is refused is written down: it tells what others have."""
    try:
        return Answer(await _diff(call))
    except Refused as error:
        call.parts.audit.write(call, error.status)
        raise
    except MooringError as error:
        call.parts.audit.write(call, refusal(error).status)
        raise


async def _diff(call: Call) -> PublishedShown:
    document, ring = _document(call), Keyring.from_environment()
    publisher = _publisher(call, ring)
    there = await publisher.read(document.tenant)
    with _discreet(call):
        found = await publisher.diff(_restored(call, document, there))
    return _would(document.tenant, found)


async def delete(call: Call) -> Answer:
    ring = Keyring.from_environment()
    published = await _publisher(call, ring).delete(check_id(call.tenant), note=_reason(call))
    _tell(call, published)
    return Answer(_published(published))


async def history(call: Call) -> Answer:
    entries = await _history(call)
    page = msgspec.structs.replace(call.query, after=_padded(call.query.after))
    some, headers = cut(entries, page, lambda each: _padded(str(each.number)), path=call.here)
    return Answer([_version(each) for each in some], headers=headers)


async def _history(call: Call) -> list[HistoryEntry]:
    publisher, tenant = _publisher(call, Keyring([])), check_id(call.tenant)
    entries = await publisher.history(tenant)
    if not entries and not await publisher.read(tenant):
        raise NotConfigured(f"there is no tenant {tenant}, and never was as far as is known")
    return entries


def _version(entry: HistoryEntry) -> Version:
    return Version(
        version=entry.number,
        at=entry.at,
        by=entry.by,
        action=entry.action,
        note=entry.note or None,
        paths=[step.path for step in entry.changes],
    )


async def version(call: Call) -> Answer:
    number, entries = call.path["version"], await _history(call)
    entry = next((each for each in entries if str(each.number) == number), None)
    if entry is None:
        kept = f"{entries[0].number} to {entries[-1].number}" if entries else "none"
        raise NotConfigured(
            f"tenant {call.tenant} has no version {number[:20]!r} in its history (there are {kept})"
        )
    told = _version(entry)
    changes: list[JSON] = records(differences(entry, Keyring.from_environment()))
    return Answer(
        VersionDetail(
            version=told.version,
            at=told.at,
            by=told.by,
            action=told.action,
            note=told.note,
            paths=told.paths,
            changes=msgspec.convert(changes, list[PartChange]),
        )
    )


async def rollback(call: Call) -> Answer:
    wanted: RollingBack = call.body
    tenant = check_id(call.tenant)
    publisher = _publisher(call, Keyring.from_environment())
    call.notes["to"] = wanted.version
    call.notes |= {"dry": True} if wanted.dry else {}
    call.notes |= {"reason": wanted.note} if wanted.note else {}
    with _discreet(call):
        if not may_unmask(call):
            await _check_rollback(publisher, tenant, wanted.version)
        if wanted.dry:
            return Answer(_would(tenant, await publisher.diff_rollback(tenant, wanted.version)))
        published = await publisher.rollback(tenant, wanted.version, note=wanted.note)
    _tell(call, published)
    return Answer(_published(published))


async def _check_rollback(publisher: Publisher, tenant: int, version: int) -> None:
    """Raise `Refused` where the history has no secrets, so that those that are there would be kept,
    and sent elsewhere."""
    unknown = {
        step.path
        for entry in await publisher.history(tenant)
        if entry.number > version
        for step in entry.changes
        if omits(step.before)
    }
    for each in await publisher.diff_rollback(tenant, version) if unknown else ():
        if isinstance(each.before, dict) and isinstance(each.after, dict) and each.path in unknown:
            diverted = of_value(each.path, each.before, masked(each.after))
            if diverted is not None:
                raise Refused(409, "conflict", f"tenant {tenant}: {diverted}")


_NO_STORE = 409

ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/tenants",
        READING,
        list_tenants,
        "The tenants that the caller may see, by id. 409 with Redis alone",
        query=Filter,
        answers={200: list[TenantSummary]},
        fails=(_NO_STORE,),
    ),
    Endpoint(
        "GET",
        TENANT,
        LOOKING,
        show_tenant,
        "All that is configured for a tenant, secrets masked",
        query=Unmasking,
        answers={200: TenantShown},
        fails=(_NO_STORE,),
    ),
    Endpoint(
        "PUT",
        TENANT,
        PUBLISHING,
        publish,
        "Make a tenant what a document says. 409: changed since `base`, a name is taken, or what "
        "passwords need is not installed; 412: it is no longer what If-Match names",
        query=Publishing,
        body=TenantDocument,
        answers={200: PublishedShown, 201: PublishedShown},
        fails=(412,),
    ),
    Endpoint(
        "POST",
        f"{TENANT}/diff",
        PUBLISHING,  # who could look only would learn by it whether a guess of a secret is right
        diff,
        "What publishing a document would change; nothing is written",
        body=TenantDocument,
        answers={200: PublishedShown},
        acts=False,
    ),
    Endpoint(
        "DELETE",
        TENANT,
        PUBLISHING,
        delete,
        "Delete a tenant with all that leads to it; its history stays",
        query=Noted,
        answers={200: PublishedShown},
    ),
    Endpoint(
        "GET",
        f"{TENANT}/history",
        LOOKING,
        history,
        "Who changed what of a tenant, oldest first; also of one that was deleted",
        query=Page,
        answers={200: list[Version]},
        fails=(_NO_STORE,),
    ),
    Endpoint(
        "GET",
        f"{TENANT}/history/{{version}}",
        LOOKING,
        version,
        "What a version changed",
        answers={200: VersionDetail},
        fails=(_NO_STORE,),
    ),
    Endpoint(
        "POST",
        f"{TENANT}/rollback",
        PUBLISHING,
        rollback,
        "Make a tenant what it was after a version of its history",
        body=RollingBack,
        answers={200: PublishedShown},
    ),
)
