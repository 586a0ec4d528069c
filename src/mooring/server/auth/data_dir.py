"""The data folder of a server: its admin token, the server key, the audit, and its locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from mooring.atomic_file import replacing
from mooring.errors import InvalidRequest, MooringError, StoreError, misplaced

ADMIN_TOKEN = "admin-token"
SERVER_KEY = "server-key"
SERVER_KEY_VARIABLE = "MOORING_SERVER_KEY"

SERVER = "server.json"
ENDED_TOKENS = "ended-tokens.json"
_LOCK = ".lock"
_SERVER_LOCK = "server.lock"
_SERVER_ID = "server-id"
_SHARED_ADMIN = "admin-token-shared"
_IF_REMOVED = {
    ADMIN_TOKEN: "and the next start creates another",
    SERVER_KEY: "and give this server the key of the others again",
    SERVER: "and start the server again",
    _SERVER_ID: "and the next start creates another",
    _SHARED_ADMIN: "and the admin token is shared again, even if another server revoked it",
    ENDED_TOKENS: "which forgets the ended tokens",
}
"""What happens if a file is removed, for error messages."""

PREFIX = "moor_"
"""The start of every token, by which secret scanners recognize one."""
SHORTEST = 32
"""Characters of the shortest accepted admin token or server key."""


def data_folder() -> Path:
    """The user's data folder for Mooring."""
    return expanded(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "mooring"


def expanded(folder: str) -> Path:
    """A path that may start with `~`."""
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise InvalidRequest(
            "this user has no home folder: name one with --data, or a file with --store "
            "sqlite:///path and --http off"
        ) from error


class RunningServer(msgspec.Struct, frozen=True):
    """The address of the server of a folder, for commands on the same machine."""

    url: str
    pid: int
    at: str = ""
    """Its local address, if the URL contains the host name of its certificate."""


def is_trusted(owner: int, *, me: int, of_folder: int) -> bool:
    """Whether files of this user are trusted: our own and those of root. Root also trusts the owner
    of the folder, because it may run commands on the folder of any user."""
    return owner in (me, 0) or (me == 0 and owner == of_folder)


def new_token() -> str:
    """A token with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


class DataDir:
    """The data folder. One server at a time runs on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.admin_token = path / ADMIN_TOKEN

    def prepare(self) -> None:
        """Create the folder and the admin token if they are missing. Raises `StoreError` if the
        folder cannot be used, and `InvalidRequest` if it is not a folder, or writable by others."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check()
        except OSError as error:
            raise self._no_folder(error) from error
        self._create(ADMIN_TOKEN, new_token())
        self.read_admin_token()

    def check(self) -> os.stat_result:
        """Raises `InvalidRequest` if others can write to the folder, and `OSError`."""
        status = self.path.stat()
        if status.st_mode & 0o022:
            raise InvalidRequest(
                f"other users can write to {self.path} (mode {stat.S_IMODE(status.st_mode):o}) and "
                f"so replace the tokens in it: chmod 700 {self.path}, or name another folder with "
                "--data, such as a new one below it"
            )
        if not is_trusted(status.st_uid, me=os.geteuid(), of_folder=status.st_uid):
            raise InvalidRequest(
                f"{self.path} belongs to another user ({status.st_uid}), who could replace the "
                "tokens in it: name a folder of your own with --data"
            )
        return status

    def read(self, file: Path, *, closed: int) -> bytes:
        """The content of a file of the folder. Raises `FileNotFoundError`, and `InvalidRequest` if
        another user may have written it, or has one of the permissions `closed`."""
        try:
            folder = self.check()
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(file, flags), "rb") as opened:
                status = os.fstat(opened.fileno())
                if problem := _problem(status, closed, of_folder=folder.st_uid):
                    raise InvalidRequest(
                        f"{file} {problem}: remove it, {_IF_REMOVED[file.name]}; or, if you are "
                        "sure that it was not read or changed, make it yours and chmod 600"
                    )
                return opened.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            link = error.errno == errno.ELOOP
            reason = "it is a symbolic link" if link else error.strerror
            raise InvalidRequest(
                f"{file} cannot be read ({reason}): remove it, {_IF_REMOVED[file.name]}"
            ) from error

    def read_admin_token(self) -> str:
        """Raises `FileNotFoundError`, and `InvalidRequest` if the token is invalid or if others
        could have read it."""
        token = self.read(self.admin_token, closed=0o077).decode("ascii", "replace").strip()
        valid = token.isascii() and token.isprintable() and " " not in token
        if len(token) < SHORTEST or not valid:
            raise InvalidRequest(
                f"{self.admin_token} does not contain a token of at least {SHORTEST} characters: "
                "remove it, and the next start creates another"
            )
        return token

    def server_key(self) -> bytes:
        """The key that the servers of a store share: from the environment, or from the file, which
        is created if it is missing. Raises `StoreError`, and `InvalidRequest` if others could have
        read it or if it is too short."""
        text = os.environ.get(SERVER_KEY_VARIABLE, "").strip().encode("utf-8", "surrogateescape")
        source = SERVER_KEY_VARIABLE
        if not text:
            file = self._create(SERVER_KEY, secrets.token_urlsafe(32))
            text, source = self.read(file, closed=0o077).strip(), str(file)
        if len(text) < SHORTEST:
            raise InvalidRequest(
                f"{source} is not a server key: it needs at least {SHORTEST} random characters"
            )
        return text

    def server_id(self) -> str:
        """A permanent random id of this server. Raises `StoreError`."""
        file = self._create(_SERVER_ID, secrets.token_hex(6))
        return self.read(file, closed=0o022).decode("ascii", "replace").strip()[:40]

    @property
    def shared_admin(self) -> str:
        """The SHA-256 of the admin token that was last shared with the other servers; empty if none
        was. Raises `InvalidRequest`."""
        try:
            digest = self.read(self.path / _SHARED_ADMIN, closed=0o022)
        except FileNotFoundError:
            return ""
        return digest.decode("ascii", "replace").strip()

    def keep_shared_admin(self, sha256: str) -> None:
        """Raises `StoreError`."""
        with self._store_errors():
            _write(self.path / _SHARED_ADMIN, sha256.encode())

    def _create(self, name: str, text: str) -> Path:
        file = self.path / name
        with self._store_errors(), self.locked():
            if not file.exists():
                _write(file, text.encode())
        return file

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        """Hold the lock on the files of the folder. Without `wait`, raises `BlockingIOError` if
        another process holds it. Raises `OSError`."""
        with _flocked(self.path / _LOCK, wait=wait):
            yield

    @contextmanager
    def server_lock(self) -> Iterator[None]:
        """Hold the lock of the server that runs on the folder. Raises `StoreError` if another
        server does or if the folder cannot be used, and `InvalidRequest` if it is not a folder."""
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
                lock = _flocked(self.path / _SERVER_LOCK, wait=False)
                descriptor = stack.enter_context(lock)
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            except BlockingIOError:
                raise StoreError(self._locked_by()) from None
            except OSError as error:
                raise self._no_folder(error) from error
            yield

    def _locked_by(self) -> str:
        pid = (self.path / _SERVER_LOCK).read_text("ascii", "replace").strip()
        with contextlib.suppress(InvalidRequest):
            # Missing while that server starts, and left by an earlier one if it has no HTTP.
            if (running := self.running()) is not None and str(running.pid) == pid:
                pid = f"{pid}, {running.url}"
        return (
            f"Mooring already runs on the data folder {self.path} (pid {pid}): stop that server, "
            "or name another folder with --data"
        )

    def announce(self, url: str, *, at: str = "") -> None:
        """Publish the address of this server. Raises `StoreError`."""
        with self._store_errors():
            _write(self.path / SERVER, msgspec.json.encode(RunningServer(url, os.getpid(), at)))

    def retract(self, url: str) -> None:
        """Withdraw the address of this server, but not that of another."""
        with contextlib.suppress(OSError, InvalidRequest):
            running = self.running()
            if running is not None and (running.url, running.pid) == (url, os.getpid()):
                (self.path / SERVER).unlink()

    def running(self) -> RunningServer | None:
        """The address of the server of this folder, which may have been killed. Raises
        `InvalidRequest` if another user may have written it."""
        try:
            content = self.read(self.path / SERVER, closed=0o022)
            return msgspec.json.decode(content, type=RunningServer)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _no_folder(self, error: OSError) -> MooringError:
        unusable = self.unusable(error)
        return InvalidRequest(str(unusable)) if misplaced(error) else unusable

    def unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the server's tokens and audit cannot be stored in {self.path}: {error.strerror}. "
            "Name another folder with --data, or serve without HTTP (--http off)"
        )

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.unusable(error) from error


def _write(file: Path, content: bytes) -> None:
    with replacing(file) as out:
        out.write(content + b"\n")


@contextmanager
def _flocked(file: Path, *, wait: bool) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        yield descriptor
    finally:
        os.close(descriptor)


def _problem(status: os.stat_result, closed: int, *, of_folder: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_mode & closed:
        action = "read" if status.st_mode & closed & 0o044 else "write to"
        mode = stat.S_IMODE(status.st_mode)
        return f"is not private: other users can {action} it (mode {mode:o})"
    if not is_trusted(status.st_uid, me=os.geteuid(), of_folder=of_folder):
        return f"belongs to another user ({status.st_uid}), who knows its content"
    return ""
