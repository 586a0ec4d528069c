"""The folder where a server keeps what must not be lost and not be seen: tokens and the audit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mooring.errors import InvalidRequest, StoreError
from mooring.replacement import replacing

ADMIN_TOKEN = "admin-token"
TOKENS = "tokens.json"
AUDIT = "audit.jsonl"
ROUTINE = "routine.jsonl"
REFUSED = "refused.jsonl"
SERVER = "server.json"
_LOCK = ".lock"

PREFIX = "moor_"
"""How every token begins that is made here, so that who finds one knows what it is."""
SHORTEST = 32
"""Characters that an admin token has at the least which somebody wrote into the file."""


class Running(msgspec.Struct, frozen=True):
    """Where the server of a folder is, for the commands on the same machine."""

    url: str
    pid: int


def new_token() -> str:
    """256 bits that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


class Folder:
    """The data folder. Several servers may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def admin_token(self) -> Path:
        return self.path / ADMIN_TOKEN

    @property
    def tokens(self) -> Path:
        return self.path / TOKENS

    @property
    def audit(self) -> Path:
        """What operators and admins did."""
        return self.path / AUDIT

    @property
    def routine(self) -> Path:
        """What viewers and services did."""
        return self.path / ROUTINE

    @property
    def refused(self) -> Path:
        """What was refused."""
        return self.path / REFUSED

    def prepare(self) -> None:
        """Make the folder and the admin token where they are not there. Raises `StoreError` for a
        folder that cannot be used, and `InvalidRequest` for one that others could write to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = self.path.stat().st_mode
            if mode & stat.S_IWOTH:
                raise InvalidRequest(
                    f"everybody may write to {self.path}, and so replace the tokens in it: "
                    f"chmod 700 {self.path}, or name another folder with --data"
                )
            with self.locked():
                if not self.admin_token.exists():
                    with replacing(self.admin_token) as out:
                        out.write(new_token().encode() + b"\n")
        except OSError as error:
            raise self.unusable(error) from error
        self.read_admin_token()

    def read_admin_token(self) -> str:
        """The token of the file. Raises `InvalidRequest` where others could have read it, or where
        it is none, and `FileNotFoundError`."""
        try:
            mode = self.admin_token.stat().st_mode
            token = self.admin_token.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            raise
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"{self.admin_token} cannot be read ({error}): remove it, and the next start makes "
                "another"
            ) from error
        if mode & 0o077:
            raise InvalidRequest(
                f"others may read {self.admin_token} (mode {mode & 0o777:o}): remove it, and the "
                "next start makes another; or, if nobody did, chmod 600"
            )
        if len(token) < SHORTEST or not token.isprintable() or " " in token:
            raise InvalidRequest(
                f"{self.admin_token} holds no token ({SHORTEST} characters at the least): remove "
                "it, and the next start makes another"
            )
        return token

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        """While nobody else changes what is kept here. Waits, or raises `BlockingIOError` where
        somebody does; raises `OSError`."""
        descriptor = os.open(
            self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(descriptor)

    def announce(self, url: str) -> None:
        """Write down where the server is. Raises `StoreError`."""
        try:
            with replacing(self.path / SERVER) as out:
                out.write(msgspec.json.encode(Running(url, os.getpid())) + b"\n")
        except OSError as error:
            raise self.unusable(error) from error

    def retract(self, url: str) -> None:
        """The server at this URL is gone; another's word stays."""
        with contextlib.suppress(OSError):
            if (told := self.running()) is not None and told.url == url and told.pid == os.getpid():
                (self.path / SERVER).unlink()

    def running(self) -> Running | None:
        """Where the server of this folder is, or was when it was killed; None where there is none.
        Raises `OSError` where that cannot be read."""
        try:
            return msgspec.json.decode((self.path / SERVER).read_bytes(), type=Running)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} cannot keep the server's tokens and audit ({error.strerror}): name "
            "another folder with --data, or serve without HTTP (--http off)"
        )
