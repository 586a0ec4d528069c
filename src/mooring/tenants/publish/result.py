"""The result of a publish, with remarks for operators."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mooring.masking import cleartext_secrets_of, is_hidden
from mooring.messages import Message, message
from mooring.tenants.keys import Owner, field_of, kind_of
from mooring.tenants.parts import PartDiff, UnreadablePart
from mooring.tenants.publish.publish_state import PublishState
from mooring.tenants.secrets import CURRENT
from mooring.tenants.validation import FIELDS


class PublishResult(msgspec.Struct, frozen=True):
    """The effects of a publish."""

    tenant: Owner
    changes: tuple[PartDiff, ...]
    """Empty if nothing had to change."""
    number: int = 0
    """The number of its history entry."""
    transactions: int = 0
    """The commits that it took: more than one if it was too large for one."""
    lost: tuple[str, ...] = ()
    """What a rollback could not restore: the history was written without a key."""
    remarks: tuple[Message, ...] = ()
    """For operators, for example about passwords in clear text."""


def result_of(state: PublishState) -> PublishResult:
    """The result of a finished publish."""
    return PublishResult(
        state.tenant,
        tuple(state.changes),
        state.number,
        state.transactions,
        state.lost if state.changes else (),
        tuple(_remarks(state)),
    )


def _remarks(state: PublishState) -> Iterator[Message]:
    """What operators should know about a finished publish."""
    if state.transactions > 1:
        yield message("publish_split", count=state.transactions)
    if state.lost and state.changes:
        yield message("publish_lost", paths=list(state.lost))
    changed = {change.path for change in state.changes}
    if clear := [path for path in state.passwords.clear if path in changed]:
        yield message("publish_no_key", paths=clear, variable=CURRENT[0])
    for change in state.changes if state.action != "rekey" else ():
        if secrets := _cleartext_fields(change):
            fields = list(secrets) if any(secrets) else []
            yield message("publish_clear_text", path=change.path, fields=fields)


def _cleartext_fields(change: PartDiff) -> tuple[str, ...]:
    """The fields of a part that hold secrets which Mooring never encrypts."""
    value = change.after
    if isinstance(value, UnreadablePart):
        return ()
    if isinstance(value, dict):
        known = FIELDS.get(kind_of(change.path), {})  # a password that is encrypted, or a hash
        value = {
            field: inner
            for field, inner in value.items()
            if field not in known or not is_hidden(field)
        }
    return cleartext_secrets_of(field_of(change.path), value)
