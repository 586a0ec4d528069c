"""A publish under way: what of it has happened, and what may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from secrets import token_hex

import msgspec

from mooring.errors import OutcomeUnknown, StoreError
from mooring.masking import cleartext_secrets_of, is_hidden
from mooring.messages import Message, message
from mooring.store.contract import Check, Write
from mooring.tenants.keys import Owner, field_of, kind_of, named
from mooring.tenants.parts import PartDiff, Parts, StoredParts, UnreadablePart
from mooring.tenants.publish.encryption import PasswordPlan
from mooring.tenants.secrets import CURRENT
from mooring.tenants.validation import FIELDS

Require = Callable[[StoredParts], None]
"""Raises unless what the store has is what the caller expects."""
ExtraWrites = Callable[[Parts], tuple[Sequence[Write], Sequence[Check]]]


class PublishResult(msgspec.Struct, frozen=True):
    """What a publish did."""

    tenant: Owner
    changes: tuple[PartDiff, ...]
    """Empty where everything was so already."""
    number: int = 0
    """Of its entry in the history."""
    transactions: int = 0
    """How many wrote parts; more than one if it was too large for one."""
    aside: int = 0
    """How many came before those, and only took away what led to a tenant that was deleted."""
    lost: tuple[str, ...] = ()
    """What a rollback could not bring back: the history was written without a key."""
    messages: tuple[Message, ...] = ()
    """What an operator should know of it, such as passwords in clear text."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """The messages in English."""
        return tuple(each.text for each in self.messages)


class Attempt(msgspec.Struct, frozen=True):
    """A commit that was sent."""

    number: int
    """Of its entry in the history…"""
    page: int
    """…and the page of that entry."""
    token: str
    """By which that page is known again."""
    told: Sequence[PartDiff]
    closing: bool
    """Whether nothing comes after it."""
    since: int
    """The number of an entry that was incomplete before this one, and maybe is still; 0: none."""

    @property
    def place(self) -> tuple[int, int]:
        return self.number, self.page


class PublishState:
    """A publish under way."""

    def __init__(
        self,
        tenant: Owner,
        action: str,
        note: str,
        also: ExtraWrites | None = None,
        require: Require | None = None,
    ) -> None:
        self.tenant, self.action, self.note = tenant, action, note
        self.also, self.require = also, require
        self.changes: list[PartDiff] = []
        self.number = self.page = self.transactions = self.aside = 0
        self._began = 0
        """The number of its first entry."""
        self.lost: tuple[str, ...] = ()
        self.passwords = PasswordPlan()
        self.unsure: list[Attempt] = []
        """Commits whose answers were lost: each may have been written, or may be yet, for as long
        as its place in the history is free."""
        self._token = token_hex(8)
        self._attempts = 0

    def attempt(
        self, last: int, told: Sequence[PartDiff], *, closing: bool, incomplete: bool = False
    ) -> Attempt:
        """The next commit. `last` is the newest number of the history, and `incomplete` says
        whether that entry has more pages to come: if it is ours, this is the next one. If another
        publisher came between, this begins another entry."""
        self._attempts += 1
        ours = last == self.number != 0
        number, page = (last, self.page + 1) if ours else (last + 1, 1)
        since = 0 if ours else self._began or (last if incomplete else 0)
        return Attempt(number, page, f"{self._token}.{self._attempts}", told, closing, since)

    def happened(self, attempt: Attempt) -> None:
        self.number, self.page = attempt.place
        self._began = self._began or self.number
        self.changes += attempt.told
        self.transactions += 1
        self.unsure = [each for each in self.unsure if each.place > attempt.place]

    def beside(self, wanted: Parts) -> tuple[Sequence[Write], Sequence[Check]]:
        """What else the last commit writes and checks."""
        writes, checks = self.also(wanted) if self.also is not None else ((), ())
        return [*writes, *self.passwords.writes], [*checks, *self.passwords.checks]

    @property
    def written(self) -> bool:
        """Whether anything was written for certain."""
        return bool(self.transactions or self.aside)

    @property
    def begun(self) -> bool:
        """Whether anything was written, or may have been."""
        return bool(self.transactions or self.aside or self.unsure)

    @property
    def so_far(self) -> str:
        if count := self.transactions + self.aside:
            return f"written in part, in {count} transaction{'s' * (count > 1)}: do it again"
        return "it may have been written, for an answer was lost: look, or do it again"

    def interrupted(self, error: StoreError) -> OutcomeUnknown:
        return OutcomeUnknown(f"{named(self.tenant)}: {self.so_far} ({error})")

    def remarks(self) -> Iterator[Message]:
        """What whoever looks after the tenant should know of a publish that is done."""
        if (count := self.transactions + self.aside) > 1:
            yield message("publish_split", count=count)
        if self.lost and self.changes:
            yield message("publish_lost", paths=list(self.lost))
        changed = {each.path for each in self.changes}
        if clear := [path for path in self.passwords.clear if path in changed]:
            yield message("publish_no_key", paths=clear, variable=CURRENT[0])
        for each in self.changes if self.action != "rekey" else ():
            if secrets := _in_clear_text(each):
                fields = list(secrets) if any(secrets) else []
                yield message("publish_clear_text", path=each.path, fields=fields)

    def published(self) -> PublishResult:
        return PublishResult(
            self.tenant,
            tuple(self.changes),
            self.number,
            self.transactions,
            self.aside,
            self.lost if self.changes else (),
            tuple(self.remarks()),
        )


def _in_clear_text(change: PartDiff) -> tuple[str, ...]:
    """The secrets of a part that are never encrypted, by their fields."""
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
