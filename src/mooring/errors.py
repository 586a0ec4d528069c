"""Every error that Mooring raises on purpose.

    MooringError
    ├── InvalidRequest (ValueError)     the arguments are invalid; nothing was sent
    │   ├── InvalidURL                  the store's URL cannot be used
    │   └── InvalidName                 a name violates the grammar
    ├── MissingExtra (ImportError)      an optional dependency is not installed
    ├── SessionLost                     the lease behind a session is gone
    ├── RegistryError
    │   ├── Superseded                  another process registered this instance
    │   ├── Removed                     an operator deregistered this instance
    │   ├── NoInstance                  nothing to call: none registered, or none eligible
    │   └── NotFound                    no service, group or instance of this name
    ├── LockError
    │   ├── LockLost                    it was held and no longer is: its lease or key is gone
    │   ├── LockTimeout (TimeoutError)  it was not acquired in time
    │   ├── Reentered                   the same task (or thread) already holds or requests it
    │   ├── NotHeld                     it was released, or was never held
    │   └── StaleToken                  a fencing token older than one already seen
    ├── TenantError
    │   ├── NotConfigured (LookupError) the tenant does not exist, or lacks the setting
    │   ├── Taken                       a code, name, host or FTP user of another tenant
    │   └── Undecipherable              the key of a password is unknown, or it is damaged
    ├── MigrationError                  a step of a migration cannot run now
    └── StoreError
        ├── Conflict                    a check failed; nothing was written
        ├── LeaseNotFound               the lease expired, was revoked or never existed
        ├── CannotResume                the revision is not in the history: read again
        │   ├── Compacted               it was compacted
        │   └── FutureRevision          it has not happened (a restored cluster)
        ├── TooLarge                    a request or transaction exceeds the store's limit
        ├── OutOfSpace                  the store rejects writes until it has space
        ├── AccessDenied                wrong credentials, or insufficient permissions
        ├── InUse                       another process owns the store's file
        ├── Closed                      the store was closed by this process
        ├── Unavailable                 not reached in time; nothing was written
        └── OutcomeUnknown              the reply was lost; the write may have happened

Each message says what happened, to what, and what to do. Never retry after `InvalidRequest`. A call
that raised `Unavailable` can be retried unchanged; after `OutcomeUnknown`, read first, or retry
with a check that makes the write idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooring.messages import Message


class MooringError(Exception):
    """The root of the tree. `str(error)` is its message in English."""

    def __init__(self, text: str | Message) -> None:
        super().__init__(str(text))
        self._text = text

    @property
    def message(self) -> Message:
        """The kind of the message and its parameters, for translation. Errors of the command line
        and of clients are plain text."""
        from mooring.messages import as_message  # every program imports this module: keep it light

        return as_message(self._text)


def _message(kind: str, **params: object) -> Message:
    from mooring.messages import message

    return message(kind, **params)


class InvalidRequest(MooringError, ValueError):
    """The arguments are invalid. Nothing was sent; the same call can never succeed."""


class InvalidURL(InvalidRequest):
    """The store's URL is invalid: an unknown scheme or option, or an invalid part."""


class InvalidName(InvalidRequest):
    """A name of a group, service or instance violates the grammar; the message names the rule."""


class MissingExtra(MooringError, ImportError):
    """An optional dependency is not installed. The message names the extra to install."""

    def __init__(self, what: str | Message, extra: str) -> None:
        from mooring.messages import verbatim

        named = verbatim(what) if isinstance(what, str) else what
        super().__init__(_message("missing_extra", what=named, package=f"mooring[{extra}]"))


class SessionLost(MooringError):
    """The lease behind a session expired or was revoked: its keys are gone, or about to be."""


class RegistryError(MooringError):
    """The base class of the registry's errors."""


class Superseded(RegistryError):
    """Another live process registered the same instance later, and takes precedence."""


class Removed(RegistryError):
    """An operator deregistered this instance. It does not register again."""


class NoInstance(RegistryError):
    """No instance can be called. The message says how many there are and why none is eligible."""


class NotFound(RegistryError):
    """The registry has no service, group or instance of this name. The message suggests a similar
    name, if there is one."""


class LockError(MooringError):
    """The base class of errors of locks, elections, semaphores and barriers."""


class LockLost(LockError):
    """A held lock was lost: its lease expired or was revoked, or its key was deleted. Another
    process may hold it now."""


class LockTimeout(LockError, TimeoutError):
    """The lock was not acquired in time. The message names the holder if it is known. No key
    remains; if the store did not confirm that, the message says that a key may remain until its TTL
    ends."""


class Reentered(LockError):
    """The same task, or thread of blocking code, already holds the lock or waits for it, and would
    wait forever."""


class NotHeld(LockError):
    """The operation needs a held lock, but the lock was released or lost."""


class StaleToken(LockError):
    """A fencing token is older than the newest one seen: its holder has lost the lock."""


class TenantError(MooringError):
    """The base class of errors of the tenants' configuration."""


class NotConfigured(TenantError, LookupError):
    """The tenant does not exist, or does not have this setting. The message names both."""


class Taken(TenantError):
    """A code, name, host or FTP user belongs to another tenant, which the message names. Nothing
    was written."""

    def __init__(self, text: str | Message, *, holder: int, claim: Message | None = None) -> None:
        super().__init__(text)
        self.holder: int = holder
        """The id of the tenant that has it."""
        self.claim: Message | None = claim
        """What is taken, for callers that may not see the other tenant."""


class Undecipherable(TenantError):
    """A password is encrypted with a key that this process does not have, or is damaged."""


class MigrationError(MooringError):
    """A step of a migration cannot run now. The message names the step that comes first, or the
    invalid file."""


class StoreError(MooringError):
    """The store returned an error or was not reached."""


class Conflict(StoreError):
    """A check of a commit failed. Nothing was written.

    `reads` are the results of the commit's own reads (`Snapshot`), taken at `revision` atomically
    with the check, so that a caller can name the holder.
    """

    def __init__(self, text: str | Message, *, revision: int, reads: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.revision: int = revision
        """The revision of the store at which the check failed."""
        self.reads: tuple[Any, ...] = tuple(reads)
        """The results of the commit's reads."""


class LeaseNotFound(StoreError):
    """The lease expired, was revoked, or never existed. Its keys are gone."""

    def __init__(self, lease: int) -> None:
        super().__init__(_message("lease_not_found", lease=f"{lease:x}"))
        self.lease: int = lease
        """The id of the lease."""


class CannotResume(StoreError):
    """The revision to read or watch from is not in the history. Read the current state again."""


class Compacted(CannotResume):
    """The requested revision was compacted.

    `revision` is the oldest one that can be read, if the store reports it.
    """

    def __init__(self, asked: int, *, revision: int | None = None) -> None:
        super().__init__(_message("compacted", asked=asked, start=revision or ""))
        self.asked: int = asked
        """The requested revision."""
        self.revision: int | None = revision
        """The oldest revision that can be read; None if the store does not report it."""


class FutureRevision(CannotResume):
    """The requested revision has not happened: a mistake, or a store restored from a backup."""

    def __init__(self, asked: int) -> None:
        super().__init__(_message("future_revision", asked=asked))
        self.asked: int = asked
        """The requested revision."""


class TooLarge(StoreError):
    """The request exceeds the store's limit of bytes or of operations. Nothing was written."""


class OutOfSpace(StoreError):
    """The store cannot write: its disk or quota is full, or its file is read-only. Nothing was
    written. Reads still work, and writes work again once there is space."""


class AccessDenied(StoreError):
    """The credentials are wrong or missing, or the permissions are insufficient."""


class InUse(StoreError):
    """Another process owns the store's file. The message names it."""


class Closed(StoreError):
    """This process closed the store."""


class Unavailable(StoreError):
    """The store was not reached, or could not serve the request. Nothing was written."""


class OutcomeUnknown(StoreError):
    """The reply was lost: the write may or may not have happened. Read before retrying."""


def misplaced(error: OSError) -> bool:
    """Whether a path is wrong: its folder does not exist, or it is a folder itself."""
    wrong = FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError
    return isinstance(error, wrong)
