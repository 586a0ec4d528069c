"""Every error that Mooring raises on purpose.

    MooringError
    ├── InvalidRequest (ValueError)     a rule was broken; nothing was sent
    │   ├── InvalidURL                  the store's URL cannot be used
    │   └── InvalidName                 a name against the grammar
    ├── MissingExtra (ImportError)      an optional dependency is not installed
    ├── SessionLost                     the lease behind a session is gone
    ├── RegistryError
    │   ├── Superseded                  another process took this instance's place
    │   ├── Removed                     an operator took this instance out
    │   └── NoInstance                  nothing to call: none registered, or none eligible
    ├── LockError
    │   ├── LockLost                    it was ours and is no longer: its lease or key is gone
    │   ├── LockTimeout (TimeoutError)  it did not become ours in time
    │   ├── Reentered                   the same task (or thread) contends for it already
    │   ├── NotHeld                     it was released, or never was held
    │   └── StaleToken                  a fencing token older than one that was seen
    ├── TenantError
    │   ├── NotConfigured (LookupError) no such tenant, or it has no such thing
    │   ├── Taken                       a code, name, host or FTP user is another tenant's
    │   └── Undecipherable              a password's key is not known here, or it was damaged
    ├── MigrationError                  a step of a migration cannot run now
    └── StoreError
        ├── Conflict                    a check failed; nothing was written
        ├── LeaseNotFound               the lease expired, was revoked or never was
        ├── CannotResume                what was asked for is no longer in the history: read again
        │   ├── Compacted               …it was compacted
        │   └── FutureRevision          …it has not happened (a restored cluster)
        ├── TooLarge                    a request or a transaction over the store's limit
        ├── OutOfSpace                  the store refuses writes until it has room
        ├── AccessDenied                wrong credentials, or a role that does not suffice
        ├── InUse                       another process owns the store's file
        ├── Closed                      the store was closed by this process
        ├── Unavailable                 not reached in time; it is certain that nothing was written
        └── OutcomeUnknown              the reply was lost; the write may have happened

Each message says what happened, to what, and what to do. `InvalidRequest` is the caller's mistake
and never worth a retry. `Unavailable` may be retried as it is; after `OutcomeUnknown` a caller
looks first (a read, or a check that makes the write idempotent).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooring.store.contract import Snapshot


class MooringError(Exception):
    """The root of the tree."""


class InvalidRequest(MooringError, ValueError):
    """A rule was broken. Nothing was sent; the same call can never succeed."""


class InvalidURL(InvalidRequest):
    """The store's URL cannot be used: unknown scheme or option, or a part that makes no sense."""


class InvalidName(InvalidRequest):
    """A name of a group, service or instance is against the grammar; the message says how."""


class MissingExtra(MooringError, ImportError):
    """An optional dependency is not installed. The message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'mooring[{extra}]'")


class SessionLost(MooringError):
    """The lease behind a session expired or was revoked: its keys are gone, or about to be."""


class RegistryError(MooringError):
    """The registry says no."""


class Superseded(RegistryError):
    """Another process registered the same instance later, and lives: it is the one that counts."""


class Removed(RegistryError):
    """An operator deregistered this very instance: it does not come back by itself."""


class NoInstance(RegistryError):
    """There is nothing to call. The message says how many there are and why none is eligible."""


class LockError(MooringError):
    """A lock, election, semaphore or barrier says no."""


class LockLost(LockError):
    """It was ours and is no longer: the lease ran out or was revoked, or the key was deleted.
    Somebody else may hold it by now."""


class LockTimeout(LockError, TimeoutError):
    """It did not become ours in time. The message says who has it. Nothing is left behind; if the
    store did not confirm that, the message says that a key may remain until its TTL."""


class Reentered(LockError):
    """The same task, or thread of blocking code, holds it or waits for it already: to wait for
    itself would take for ever."""


class NotHeld(LockError):
    """What needs a lock that is held was asked of one that was released, or is lost."""


class StaleToken(LockError):
    """A fencing token is older than the newest that was seen: whoever has it lost its lock."""


class TenantError(MooringError):
    """The configuration of a tenant says no."""


class NotConfigured(TenantError, LookupError):
    """There is no such tenant, or it has no such thing. The message names both."""


class Taken(TenantError):
    """A code, name, host or FTP user belongs to another tenant, whom the message names. Nothing
    was written."""

    def __init__(self, message: str, *, holder: int, claim: str = "") -> None:
        super().__init__(message)
        self.holder = holder
        self.claim = claim
        """What is taken, for who may not know by whom."""


class Undecipherable(TenantError):
    """A password is encrypted with a key that is not known here, or was damaged."""


class MigrationError(MooringError):
    """A step of a migration cannot run now: the message names the step that comes first, or the
    file that cannot be used."""


class StoreError(MooringError):
    """The store answered with an error, or could not be asked."""


class Conflict(StoreError):
    """A check of a commit failed. Nothing was written.

    `reads` are the answers to the commit's own reads, taken at `revision` in the same instant as
    the check, so that a caller can say who holds what it wanted.
    """

    def __init__(self, message: str, *, revision: int, reads: Sequence[Snapshot] = ()) -> None:
        super().__init__(message)
        self.revision = revision
        self.reads = tuple(reads)


class LeaseNotFound(StoreError):
    """The lease expired, was revoked, or never existed. Its keys are gone."""

    def __init__(self, lease: int) -> None:
        super().__init__(
            f"lease {lease:x} is not known to the store: it expired or was revoked; grant a new one"
        )
        self.lease = lease


class CannotResume(StoreError):
    """The place in the history to read or watch from does not exist. Read the present again."""


class Compacted(CannotResume):
    """The revision asked for was compacted away.

    `revision` is the oldest that can be read, where the store tells it.
    """

    def __init__(self, asked: int, *, revision: int | None = None) -> None:
        start = f", the history starts at {revision}" if revision else ""
        super().__init__(
            f"revision {asked} is compacted{start}: read the present again and go on from there"
        )
        self.asked = asked
        self.revision = revision


class FutureRevision(CannotResume):
    """The revision asked for has not happened: a mistake, or a store restored from a backup."""

    def __init__(self, asked: int) -> None:
        super().__init__(
            f"revision {asked} has not happened yet: the store may have been restored from a "
            "backup; read the present again"
        )
        self.asked = asked


class TooLarge(StoreError):
    """The request is over the store's limit of bytes or of operations. Nothing was written."""


class OutOfSpace(StoreError):
    """The store cannot write: its disk or quota is full, or its file read-only. Nothing was
    written; reads go on, and writes work again by themselves once they can."""


class AccessDenied(StoreError):
    """The credentials are wrong or missing, or the role does not suffice."""


class InUse(StoreError):
    """Another process owns the store's file. The message names it."""


class Closed(StoreError):
    """This store was closed by its owner in this process."""


class Unavailable(StoreError):
    """The store was not reached, or could not serve. It is certain that nothing was written."""


class OutcomeUnknown(StoreError):
    """The reply was lost: the write may have happened or not. Look before trying again."""


def misplaced(error: OSError) -> bool:
    """Whether a path was named wrongly: its folder is missing, or it is a folder itself."""
    wrong = FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError
    return isinstance(error, wrong)
