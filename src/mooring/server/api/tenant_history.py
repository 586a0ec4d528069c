"""The history of tenants and of the shared configuration: list changes and roll back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec

from mooring.errors import NotConfigured
from mooring.masking import masked
from mooring.messages import message
from mooring.server.api.endpoint import NO_STORE, ApiCall, EndpointList
from mooring.server.api.shared_settings import AREA, CHANGE_AREA, READ_AREA
from mooring.server.api.tenants import (
    PUBLISH_TENANT,
    READ_TENANT,
    TENANT,
    BaseRevision,
    Note,
    PartChange,
    Precondition,
    PublishReport,
    hide_holder,
    owner_of,
    part_changes,
    preview_response,
    publish_response,
    publisher_of,
    zero_padded,
)
from mooring.server.http.request import PageQuery, paginate
from mooring.server.http.response import HTTPError, Response
from mooring.tenants.history import HistoryEntry, entry_diffs, omits_secret, versions
from mooring.tenants.keys import Owner, named
from mooring.tenants.publish.publisher import Publisher
from mooring.tenants.redirect_guard import redirect_in_value
from mooring.tenants.secrets import Keyring

endpoints = EndpointList(fails=(NO_STORE,))


class VersionSummary(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at: str
    by: str
    action: str
    note: str | None
    paths: list[str]
    """The parts that changed."""
    interrupted: bool
    """Whether the change needed several transactions, of which only some were committed."""
    restorable: bool
    """Whether a rollback can restore it: not if it is in the middle of a publish."""


class VersionDetail(VersionSummary, frozen=True, kw_only=True):
    changes: list[PartChange]


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    """Restores the state after this version; 0: the state before the first."""
    dry: bool = False
    """Only preview the changes."""
    note: Note = ""
    base: BaseRevision = ""
    """The `revision` that the caller read: 409 if the tenant has changed since."""


@endpoints.add(
    "GET",
    f"{TENANT}/history",
    READ_TENANT,
    query=PageQuery,
    answers={200: list[VersionSummary]},
    summary="List changes of a tenant, oldest first; also after its deletion",
)
@endpoints.add(
    "GET",
    f"{AREA}/history",
    READ_AREA,
    query=PageQuery,
    answers={200: list[VersionSummary]},
    summary="List changes of the shared configuration, oldest first",
)
async def list_versions(call: ApiCall) -> Response:
    entries = await _history(call)
    query = msgspec.structs.replace(call.query, after=zero_padded(call.query.after))
    page, headers = paginate(
        entries, query, lambda entry: zero_padded(str(entry.number)), path=call.raw_path
    )
    restorable = frozenset(versions(entries))
    return Response([_summary(entry, restorable) for entry in page], headers=headers)


async def _history(call: ApiCall) -> list[HistoryEntry]:
    publisher, owner = publisher_of(call, Keyring([])), owner_of(call)
    entries = await publisher.history(owner)
    if not entries and isinstance(owner, int) and not await publisher.read(owner):
        raise NotConfigured(message("no_history", owner=named(owner)))
    return entries


def _summary(entry: HistoryEntry, restorable: Collection[int]) -> VersionSummary:
    return VersionSummary(
        version=entry.number,
        at=entry.at,
        by=entry.by,
        action=entry.action,
        note=entry.note or None,
        paths=[change.path for change in entry.changes],
        interrupted=entry.more,
        restorable=entry.number in restorable,
    )


@endpoints.add("GET", f"{TENANT}/history/{{version}}", READ_TENANT, answers={200: VersionDetail})
@endpoints.add("GET", f"{AREA}/history/{{version}}", READ_AREA, answers={200: VersionDetail})
async def get_version(call: ApiCall) -> Response:
    """Get the changes of one version."""
    number, entries = call.path["version"], await _history(call)
    entry = next((entry for entry in entries if str(entry.number) == number), None)
    if entry is None:
        first, last = (entries[0].number, entries[-1].number) if entries else ("", "")
        problem = message("version_not_found", version=number, first=first, last=last)
        raise NotConfigured(message("of_owner", owner=named(owner_of(call)), problem=problem))
    summary = msgspec.structs.asdict(_summary(entry, versions(entries)))
    changes = part_changes(entry_diffs(entry, Keyring.from_environment()))
    return Response(VersionDetail(**summary, changes=changes))


@endpoints.add(
    "POST",
    f"{TENANT}/rollback",
    PUBLISH_TENANT,
    body=RollbackRequest,
    answers={200: PublishReport},
    fails=(412,),
    summary="Roll a tenant back to a version of its history. 409: it changed since `base`. 412: "
    "`If-Match` does not match",
)
@endpoints.add(
    "POST",
    f"{AREA}/rollback",
    CHANGE_AREA,
    body=RollbackRequest,
    answers={200: PublishReport},
    fails=(412,),
    summary="Roll an area back to a version of its history. 409: it changed since `base`. 412: "
    "`If-Match` does not match",
)
async def rollback(call: ApiCall) -> Response:
    request: RollbackRequest = call.body
    owner, version = owner_of(call), request.version
    publisher = publisher_of(call, Keyring.from_environment())
    call.notes["to"] = version
    if request.dry:
        call.notes["dry"] = True
    if request.note:
        call.notes["reason"] = request.note
    with hide_holder(call):
        if not call.may_unmask:
            await _check_redirects(publisher, owner, version)
        if request.dry:
            return preview_response(owner, await publisher.diff_rollback(owner, version))
        precondition = Precondition(call, request.base)
        result = await publisher.rollback(owner, version, note=request.note, require=precondition)
    return publish_response(call, result)


async def _check_redirects(publisher: Publisher, owner: Owner, version: int) -> None:
    """Raise `HTTPError` (409) if the rollback would keep a current secret, because the history
    omits secrets, and redirect it to another host."""
    unknown = {
        change.path
        for entry in await publisher.history(owner)
        if entry.number > version
        for change in entry.changes
        if omits_secret(change.before)
    }
    for diff in await publisher.diff_rollback(owner, version) if unknown else ():
        if isinstance(diff.before, dict) and isinstance(diff.after, dict) and diff.path in unknown:
            redirect = redirect_in_value(diff.path, diff.before, masked(diff.after))
            if redirect is not None:
                raise HTTPError(409, "conflict", "of_owner", owner=named(owner), problem=redirect)
