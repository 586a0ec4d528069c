"""The state of a publish in progress: which commits succeeded, and which may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex

import msgspec

from mooring.errors import OutcomeUnknown, StoreError
from mooring.messages import Message, message
from mooring.store.contract import Check, Write
from mooring.tenants.keys import Owner, named
from mooring.tenants.parts import (
    NOTHING_RESENT,
    PartDiff,
    Parts,
    Resent,
    StoredParts,
)
from mooring.tenants.publish.encryption import PasswordPlan
from mooring.tenants.publish.plan import Unit

Require = Callable[[StoredParts], None]
"""Raises unless the stored parts are what the caller expects."""
ExtraWrites = Callable[[Parts], tuple[Sequence[Write], Sequence[Check]]]


class Attempt(msgspec.Struct, frozen=True):
    """A commit that was sent, with its page of the history."""

    number: int
    page: int
    token: str
    """Identifies the page in the store."""
    changes: Sequence[PartDiff]
    closing: bool
    """Whether this is the last commit of the publish."""
    since: int
    """The number of an earlier entry that was incomplete, and may still be; 0: none."""

    @property
    def place(self) -> tuple[int, int]:
        return self.number, self.page


class PublishState:
    def __init__(
        self,
        tenant: Owner,
        action: str,
        note: str,
        also: ExtraWrites | None = None,
        require: Require | None = None,
        resent: Resent = NOTHING_RESENT,
    ) -> None:
        self.tenant, self.action, self.note = tenant, action, note
        self.also, self.require, self.resent = also, require, resent
        self.changes: list[PartDiff] = []
        self.number = self.page = self.transactions = 0
        self._first_number = 0
        """The number of its first history entry."""
        self.lost: tuple[str, ...] = ()
        self.passwords = PasswordPlan()
        self.unconfirmed: list[Attempt] = []
        """Commits whose replies were lost. Each may have been written, or may still be, as long as
        its page of the history does not exist."""
        self._token = token_hex(8)
        self._attempts = 0

    def attempt(
        self, last: int, changes: Sequence[PartDiff], *, closing: bool, incomplete: bool = False
    ) -> Attempt:
        """The next commit. `last` is the newest number of the history, and `incomplete` says
        whether that entry expects more pages: if it is ours, this is the next one. If another
        publisher wrote in between, this commit starts another entry."""
        self._attempts += 1
        ours = last == self.number != 0
        number, page = (last, self.page + 1) if ours else (last + 1, 1)
        since = 0 if ours else self._first_number or (last if incomplete else 0)
        return Attempt(number, page, f"{self._token}.{self._attempts}", changes, closing, since)

    def confirm(self, attempt: Attempt) -> None:
        self.number, self.page = attempt.place
        self._first_number = self._first_number or self.number
        self.changes += attempt.changes
        self.transactions += 1
        self.unconfirmed = [other for other in self.unconfirmed if other.place > attempt.place]

    def discard(self, attempt: Attempt) -> None:
        """Forget a commit that was not written."""
        self.unconfirmed = [other for other in self.unconfirmed if other is not attempt]

    def extra(self, target: Parts) -> Unit:
        """What the last commit writes and checks in addition."""
        writes, checks = self.also(target) if self.also is not None else ((), ())
        return Unit((), (*writes, *self.passwords.writes), (*checks, *self.passwords.checks))

    @property
    def written(self) -> bool:
        """Whether anything was certainly written."""
        return self.transactions > 0

    @property
    def begun(self) -> bool:
        """Whether anything was written, or may have been."""
        return self.written or bool(self.unconfirmed)

    @property
    def progress(self) -> Message:
        if self.written:
            return message("publish_partial", count=self.transactions)
        return message("publish_unconfirmed")

    def interrupted(self, error: StoreError) -> OutcomeUnknown:
        owner, progress = named(self.tenant), self.progress
        return OutcomeUnknown(
            message("publish_interrupted", owner=owner, progress=progress, error=error)
        )
