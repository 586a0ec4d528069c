"""The data folder of a server: its admin token, the key that it shares with others, its audit."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest, MooringError, StoreError, misplaced

ADMIN_TOKEN = "admin-token"
SERVER_KEY = "server-key"
SERVER_KEY_VARIABLE = "MOORING_SERVER_KEY"
TOKENS = "tokens.json"
"""Where earlier versions kept the tokens."""
AUDIT = "audit.jsonl"
ROUTINE = "routine.jsonl"
REFUSED = "refused.jsonl"
SERVER = "server.json"
_LOCK = ".lock"
_SERVER_LOCK = "server.lock"
_SERVER_ID = "server-id"
_SHARED_ADMIN = "admin-token-shared"
ENDED_TOKENS = "ended-tokens.json"
_WITHOUT = {
    ADMIN_TOKEN: "and the next start makes another",
    SERVER_KEY: "and give this server the key of the others again",
    TOKENS: "which revokes all tokens but the admin's",
    SERVER: "and start the server again",
    _SERVER_ID: "and the next start makes another",
    _SHARED_ADMIN: "and the admin token is shared again, even if another server revoked it",
    ENDED_TOKENS: "which forgets the tokens that ended",
}
"""What comes of removing a file."""

PREFIX = "moor_"
"""How every token begins that is made here, so that who finds one knows what it is."""
SHORTEST = 32
"""Characters that an admin token has at the least which somebody wrote into the file."""


def data_folder() -> Path:
    """The user's data folder for Mooring."""
    return expanded(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "mooring"


def expanded(folder: str) -> Path:
    """A folder that may begin with `~`."""
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise InvalidRequest(
            "this user has no home folder: name one with --data, or a file with --store "
            "sqlite:///path and --http off"
        ) from error


class RunningServer(msgspec.Struct, frozen=True):
    """Where the server of a folder is, for the commands on the same machine."""

    url: str
    pid: int
    at: str = ""
    """Its address on this machine, where the URL has the name of its certificate."""


def is_trusted(owner: int, *, me: int, of_folder: int) -> bool:
    """Whether a file of this user is good for us: our own or root's. Who is root looks into the
    folder of whom they like, and takes there what its owner put."""
    return owner in (me, 0) or (me == 0 and owner == of_folder)


def new_token() -> str:
    """256 bits that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


class DataDir:
    """The data folder. One server at a time runs on it."""

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
        folder that cannot be used, and `InvalidRequest` if it is not a folder, or if others could
        write to it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check()
        except OSError as error:
            raise self._no_folder(error) from error
        self._make(self.admin_token, new_token())
        self.read_admin_token()

    def check(self) -> os.stat_result:
        """Raises `InvalidRequest` for a folder that others could write to, and `OSError`."""
        told = self.path.stat()
        if told.st_mode & 0o022:
            raise InvalidRequest(
                f"others may write to {self.path} (mode {stat.S_IMODE(told.st_mode):o}), and so "
                f"replace the tokens in it: chmod 700 {self.path}, or name another folder with "
                "--data, be it a new one below it"
            )
        if not is_trusted(told.st_uid, me=os.geteuid(), of_folder=told.st_uid):
            raise InvalidRequest(
                f"{self.path} belongs to another user ({told.st_uid}), who could replace the "
                "tokens in it: name a folder of your own with --data"
            )
        return told

    def read(self, file: Path, *, closed: int) -> bytes:
        """What is in a file of the folder. Raises `InvalidRequest` where somebody else could have
        put it there, or may do what is `closed` to others, and `FileNotFoundError`."""
        try:
            folder = self.check()
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(file, flags), "rb") as opened:
                told = os.fstat(opened.fileno())
                if problem := _problem(told, closed, of_folder=folder.st_uid):
                    raise InvalidRequest(
                        f"{file} {problem}: remove it, {_WITHOUT[file.name]}; or, if nobody did "
                        "anything with it, make it yours and chmod 600"
                    )
                return opened.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            link = error.errno == errno.ELOOP
            why = "it is a symbolic link" if link else error.strerror
            raise InvalidRequest(
                f"{file} cannot be read ({why}): remove it, {_WITHOUT[file.name]}"
            ) from error

    def read_admin_token(self) -> str:
        """The token of the file. Raises `InvalidRequest` where others could have read it, or where
        it is none, and `FileNotFoundError`."""
        token = self.read(self.admin_token, closed=0o077).decode("ascii", "replace").strip()
        good = token.isascii() and token.isprintable() and " " not in token
        if len(token) < SHORTEST or not good:
            raise InvalidRequest(
                f"{self.admin_token} holds no token ({SHORTEST} characters at the least): remove "
                "it, and the next start makes another"
            )
        return token

    def server_key(self) -> bytes:
        """The key that the servers of a store share: that of the environment, or that of the file,
        which is made if it is missing. Raises `InvalidRequest` if others could have read it, or if
        it is too short, and `StoreError`."""
        text = os.environ.get(SERVER_KEY_VARIABLE, "").strip().encode("utf-8", "surrogateescape")
        where = SERVER_KEY_VARIABLE
        if not text:
            file = self.path / SERVER_KEY
            self._make(file, secrets.token_urlsafe(32))
            text, where = self.read(file, closed=0o077).strip(), str(file)
        if len(text) < SHORTEST:
            raise InvalidRequest(
                f"{where} is not a server key: it needs {SHORTEST} random characters or more"
            )
        return text

    def server_id(self) -> str:
        """Tells this server from the others, and stays the same. Raises `StoreError`."""
        file = self.path / _SERVER_ID
        self._make(file, secrets.token_hex(6))
        return self.read(file, closed=0o022).decode("ascii", "replace").strip()[:40]

    @property
    def shared_admin(self) -> str:
        """The SHA-256 of the admin token that the other servers were given last; empty if there is
        none. Raises `InvalidRequest`."""
        try:
            found = self.read(self.path / _SHARED_ADMIN, closed=0o022)
        except FileNotFoundError:
            return ""
        return found.decode("ascii", "replace").strip()

    def keep_shared_admin(self, sha256: str) -> None:
        """Raises `StoreError`."""
        try:
            with replacing(self.path / _SHARED_ADMIN) as out:
                out.write(sha256.encode() + b"\n")
        except OSError as error:
            raise self.unusable(error) from error

    def _make(self, file: Path, text: str) -> None:
        try:
            with self.locked():
                if not file.exists():
                    with replacing(file) as out:
                        out.write(text.encode() + b"\n")
        except OSError as error:
            raise self.unusable(error) from error

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

    @contextmanager
    def server_lock(self) -> Iterator[None]:
        """While this process is the server of the folder. Raises `StoreError` if another one is,
        which changes nothing, and if the folder cannot be used; `InvalidRequest` for no folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path / _SERVER_LOCK, flags, 0o600)
        except OSError as error:
            raise self._no_folder(error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(self._taken(descriptor)) from None
            except OSError:
                pass  # a file system without locks
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            yield
        finally:
            os.close(descriptor)

    def _taken(self, descriptor: int) -> str:
        pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        with contextlib.suppress(InvalidRequest):
            # Not yet there while the other one starts, and a former one's if it has no HTTP.
            if (running := self.running()) is not None and str(running.pid) == pid:
                pid = f"{pid}, {running.url}"
        return (
            f"Mooring already runs on the data folder {self.path} (pid {pid}): stop that server, "
            "or name another folder with --data"
        )

    def announce(self, url: str, *, at: str = "") -> None:
        """Write down where the server is. Raises `StoreError`."""
        try:
            with replacing(self.path / SERVER) as out:
                out.write(msgspec.json.encode(RunningServer(url, os.getpid(), at)) + b"\n")
        except OSError as error:
            raise self.unusable(error) from error

    def retract(self, url: str) -> None:
        """The server at this URL is gone; another's word stays."""
        with contextlib.suppress(OSError, InvalidRequest):
            if (told := self.running()) is not None and told.url == url and told.pid == os.getpid():
                (self.path / SERVER).unlink()

    def running(self) -> RunningServer | None:
        """Where the server of this folder is, or was when it was killed; None where there is none.
        Raises `InvalidRequest` where somebody else may have said so."""
        try:
            told = self.read(self.path / SERVER, closed=0o022)
            return msgspec.json.decode(told, type=RunningServer)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _no_folder(self, error: OSError) -> MooringError:
        unusable = self.unusable(error)
        return InvalidRequest(str(unusable)) if misplaced(error) else unusable

    def unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} cannot keep the server's tokens and audit: {error.strerror}. Name "
            "another folder with --data, or serve without HTTP (--http off)"
        )


def _problem(told: os.stat_result, closed: int, *, of_folder: int) -> str:
    if not stat.S_ISREG(told.st_mode):
        return "is no file"
    if told.st_mode & closed:
        may = "read" if told.st_mode & closed & 0o044 else "write to"
        mode = stat.S_IMODE(told.st_mode)
        return f"is not for you alone, others may {may} it (mode {mode:o})"
    if not is_trusted(told.st_uid, me=os.geteuid(), of_folder=of_folder):
        return f"belongs to another user ({told.st_uid}), who knows what is in it"
    return ""
