"""The history of tenants, and of what they share: who changed what, and rolling back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec

from mooring.errors import NotConfigured
from mooring.formatting import quoted
from mooring.masking import masked
from mooring.model import JSON
from mooring.server.api.tenants import (
    LOOKING,
    NO_STORE,
    PUBLISHING,
    TENANT,
    Base,
    Note,
    PartChange,
    PublishedShown,
    discreet,
    owner_of,
    padded,
    precondition,
    published_shown,
    publisher_of,
    tell,
    would_change,
)
from mooring.server.api.unmasking import may_unmask
from mooring.server.auth.authorization import Need
from mooring.server.http.request import ApiCall, Page, cut
from mooring.server.http.response import HTTPError, Response
from mooring.server.http.routing import ApiRoute
from mooring.tenants.diff import changes_to_json
from mooring.tenants.history import HistoryEntry, entry_diffs, omits_secret, versions
from mooring.tenants.keys import Owner, named
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.redirect_guard import redirect_in_value
from mooring.tenants.secrets import Keyring


class Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at: str
    by: str
    action: str
    note: str | None
    paths: list[str]
    """The parts that changed."""
    interrupted: bool
    """Whether it was to take several transactions, and not all of them were written."""
    restorable: bool
    """Whether a rollback may go to it: not if it lies in the middle of a publish."""


class VersionDetail(Version, frozen=True, kw_only=True):
    changes: list[PartChange]


class RollingBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    """Of the history: it becomes what it was after that; 0: before the first."""
    dry: bool = False
    """Only say what would change."""
    note: Note = ""
    base: Base = ""
    """The `revision` that the caller saw: 409 if the tenant has changed since."""


async def history(call: ApiCall) -> Response:
    entries = await _history(call)
    page = msgspec.structs.replace(call.query, after=padded(call.query.after))
    some, headers = cut(entries, page, lambda each: padded(str(each.number)), path=call.here)
    allowed = frozenset(versions(entries))
    return Response([_version(each, allowed) for each in some], headers=headers)


async def _history(call: ApiCall) -> list[HistoryEntry]:
    publisher, owner = publisher_of(call, Keyring([])), owner_of(call)
    entries = await publisher.history(owner)
    if not entries and isinstance(owner, int) and not await publisher.read(owner):
        raise NotConfigured(f"there is no tenant {owner}, and never was as far as is known")
    return entries


def _version(entry: HistoryEntry, allowed: Collection[int]) -> Version:
    return Version(
        version=entry.number,
        at=entry.at,
        by=entry.by,
        action=entry.action,
        note=entry.note or None,
        paths=[step.path for step in entry.changes],
        interrupted=entry.more,
        restorable=entry.number in allowed,
    )


async def version(call: ApiCall) -> Response:
    number, entries = call.path["version"], await _history(call)
    entry = next((each for each in entries if str(each.number) == number), None)
    if entry is None:
        kept = f"{entries[0].number} to {entries[-1].number}" if entries else "none"
        raise NotConfigured(
            f"{named(owner_of(call))}: no version {quoted(number, 20)} in the history (there are "
            f"{kept})"
        )
    told = _version(entry, versions(entries))
    changes: list[JSON] = changes_to_json(entry_diffs(entry, Keyring.from_environment()))
    return Response(
        VersionDetail(
            **msgspec.structs.asdict(told), changes=msgspec.convert(changes, list[PartChange])
        )
    )


async def rollback(call: ApiCall) -> Response:
    wanted: RollingBack = call.body
    tenant = owner_of(call)
    publisher = publisher_of(call, Keyring.from_environment())
    call.notes["to"] = wanted.version
    call.notes |= {"dry": True} if wanted.dry else {}
    call.notes |= {"reason": wanted.note} if wanted.note else {}
    with discreet(call):
        if not may_unmask(call):
            await _check_rollback(publisher, tenant, wanted.version)
        if wanted.dry:
            return Response(
                would_change(tenant, await publisher.diff_rollback(tenant, wanted.version))
            )
        published = await publisher.rollback(
            tenant, wanted.version, note=wanted.note, require=precondition(call, wanted.base)
        )
    tell(call, published)
    return Response(published_shown(published))


async def _check_rollback(publisher: Publisher, tenant: Owner, version: int) -> None:
    """Raise `HTTPError` (409) if the rollback would keep a current secret, because the history
    omits secrets, and redirect it to another host."""
    unknown = {
        step.path
        for entry in await publisher.history(tenant)
        if entry.number > version
        for step in entry.changes
        if omits_secret(step.before)
    }
    for each in await publisher.diff_rollback(tenant, version) if unknown else ():
        if isinstance(each.before, dict) and isinstance(each.after, dict) and each.path in unknown:
            redirect = redirect_in_value(each.path, each.before, masked(each.after))
            if redirect is not None:
                raise HTTPError(409, "conflict", f"{named(tenant)}: {redirect}")


def history_endpoints(
    place: str, looking: Need, changing: Need, *, what: str, whose: str
) -> tuple[ApiRoute, ...]:
    """The history of what lies at a place of the API, and the way back."""
    return (
        ApiRoute(
            "GET",
            f"{place}/history",
            looking,
            history,
            whose,
            query=Page,
            answers={200: list[Version]},
            fails=(NO_STORE,),
        ),
        ApiRoute(
            "GET",
            f"{place}/history/{{version}}",
            looking,
            version,
            "Get the changes of one version",
            answers={200: VersionDetail},
            fails=(NO_STORE,),
        ),
        ApiRoute(
            "POST",
            f"{place}/rollback",
            changing,
            rollback,
            f"Roll {what} back to a version of its history. 409, 412: see PUT",
            body=RollingBack,
            answers={200: PublishedShown},
            fails=(412,),
        ),
    )


ENDPOINTS = history_endpoints(
    TENANT,
    LOOKING,
    PUBLISHING,
    what="a tenant",
    whose="List changes of a tenant, oldest first; also after its deletion",
)
