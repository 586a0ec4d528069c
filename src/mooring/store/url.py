"""Parses and validates the URL of a store. Its text never contains the password.

    memory://[name][?history=100000&history_age=1h&history_bytes=256MiB&quota=2GiB]
    sqlite:///path/to/file[?history=…&history_age=…&history_bytes=…&quota=…]
    etcd://[user:password@]host[:2379][,host…][?user=&password=&password_file=&timeout=5s]
    etcds://…                                  [&ca=FILE&cert=FILE&key=FILE&server_name=NAME]

and for registries on Redis:

    redis://[user:password@]host[:6379][/database][?prefix=registry&timeout=3s&expire=2m]
    rediss://…                                 [&ca=FILE&cert=FILE&key=FILE]
    redis+cluster://host:port[,host:port…]     [?tls=on…]
    redis+sentinel://host:26379[,host…]/NAME[/database][?sentinel_password=…&tls=on…]

Every scheme takes `namespace=PREFIX`, a prefix of all keys. In the path of a file, write `?`, `#`
and `%` as %3F, %23 and %25; all other characters are allowed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from mooring.durations import parse_duration
from mooring.errors import InvalidURL
from mooring.formatting import quoted
from mooring.names import closest, nearest

T = TypeVar("T")

MASK = "***"
_SECRET = ("sentinel_password",)


def _text(value: str) -> str:
    if not value:
        raise ValueError("it must not be empty")
    return value


def _count(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError("it must be an integer of at least 1")
    return int(value)


_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def _bytes(value: str) -> int:
    match = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)?", value)
    if match is None or not int(match[1]):
        raise ValueError("it must be a positive number of bytes, like 1000000 or 256MiB")
    return int(match[1]) * _UNITS[match[2] or ""]


def _quota(value: str) -> int:
    """Bytes; 0 for "off"."""
    if value == "off":
        return 0
    try:
        return _bytes(value)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from error


def _duration(value: str) -> float:
    if not (seconds := parse_duration(value)):
        raise ValueError("it must be more than 0")
    return seconds


def check_quota(value: str) -> None:
    try:
        _quota(value)
    except ValueError as error:
        raise InvalidURL(f"the quota {value} is invalid: {error}") from error


Options = Mapping[str, Callable[[str], Any]]

_EMBEDDED: Options = {
    "quota": _quota,
    "namespace": _text,
    "history": _count,
    "history_age": _duration,
    "history_bytes": _bytes,
}
_ETCD: Options = {
    "namespace": _text,
    "user": str,
    "password": str,
    "password_file": _text,
    "timeout": _duration,
}


def _switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError("it must be on or off")
    return value == "on"


def _key_part(value: str) -> str:
    if re.search(r"[\s{}\x00-\x1f\x7f]", _text(value)):
        raise ValueError("it must not contain spaces, control characters or braces")
    return value


_REDIS: Options = {
    "namespace": _key_part,
    "prefix": _key_part,
    "user": str,
    "password": str,
    "password_file": _text,
    "timeout": _duration,
    "expire": _duration,
    "ca": _text,
    "cert": _text,
    "key": _text,
}
_SEVERAL: Options = {**_REDIS, "tls": _switch}
_FILES = ("ca", "cert", "key", "server_name")
OPTIONS: Mapping[str, Options] = {
    "memory": _EMBEDDED,
    "sqlite": _EMBEDDED,
    "etcd": _ETCD,
    "etcds": {**_ETCD, **dict.fromkeys(_FILES, _text)},
    "redis": {name: read for name, read in _REDIS.items() if name not in ("ca", "cert", "key")},
    "rediss": _REDIS,
    "redis+cluster": _SEVERAL,
    "redis+sentinel": {**_SEVERAL, "sentinel_password": str},
}
"""The options of each scheme, with their parsers."""

_PORTS = {
    "etcd": 2379,
    "etcds": 2379,
    "redis": 6379,
    "rediss": 6379,
    "redis+cluster": 6379,
    "redis+sentinel": 26379,
}

REDIS = ("redis", "rediss", "redis+cluster", "redis+sentinel")
"""The schemes of registries on Redis."""


@dataclass(frozen=True, slots=True)
class StoreURL:
    """The parts of a URL. `str()` is the URL with the password masked."""

    scheme: str
    location: str
    """The part between `//` and `?`: hosts, a name, or the path of a file."""
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        secret = f":{MASK}" if self.password else ""
        user = f"{self.user}{secret}@" if self.user else ""
        options = "&".join(
            f"{name}={MASK if name in _SECRET else value}" for name, value in self.options.items()
        )
        location = _quoted(self.location) if self.scheme == "sqlite" else self.location
        return f"{self.scheme}://{user}{location}{'?' if options else ''}{options}"

    @property
    def is_store(self) -> bool:
        """Whether it names a store; otherwise it names only a registry."""
        return self.scheme not in REDIS

    def hosts(self, port: int) -> tuple[str, ...]:
        """The hosts, each with its port."""
        location = self.location.partition("/")[0] if self.scheme in REDIS else self.location
        hosts = enumerate(location.split(","), 1)
        return tuple(_with_port(number, host.strip(), port) for number, host in hosts)

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts after the hosts: the database; for Sentinel, the master's name and database."""
        return tuple(self.location.split("/")[1:])

    def path(self, name: str) -> Path | None:
        return Path(value).expanduser() if (value := self.options.get(name)) else None

    @property
    def file(self) -> Path:
        """The file of `sqlite://`."""
        try:
            return Path(self.location).expanduser()
        except RuntimeError as error:
            raise InvalidURL(f"{self}: the home directory does not exist") from error

    def option(self, name: str, default: T) -> T:
        """The parsed value of an option."""
        if name not in self.options:
            return default
        value: T = OPTIONS[self.scheme][name](self.options[name])
        return value


def parse(text: str) -> StoreURL:
    """Parse a store URL. Raises `InvalidURL`, which names the invalid part and never a password."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise InvalidURL("not a store URL: write it like etcd://HOST:2379 or memory://")
    if scheme not in OPTIONS:
        known = ", ".join(f"{name}://" for name in OPTIONS)
        close = closest(scheme, OPTIONS)
        hint = f"did you mean {quoted(close)}?" if close else f"use one of {known}"
        raise InvalidURL(f"unknown URL scheme {quoted(scheme)}: {hint}")
    location, _, query = rest.partition("?")
    if "#" in rest:
        raise InvalidURL(f"{_masked(text)} has a '#': write it as %23")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise InvalidURL(f"the options of {_masked(text)} must be name=value") from None
    _check_options(scheme, options)
    user, password, location = _split_location(scheme, location.rstrip("/"))
    if password := options.pop("password", "") or unquote(password):
        options.pop("password_file", None)
    url = StoreURL(
        scheme,
        location,
        options.pop("user", "") or unquote(user),
        _password(scheme, password, options),
        options,
    )
    _check_location(url)
    if ("cert" in options) != ("key" in options):
        raise InvalidURL("a client certificate needs both: cert=FILE and key=FILE")
    return url


def _check_options(scheme: str, options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if (parse_option := OPTIONS[scheme].get(name)) is None:
            raise InvalidURL(
                f"{scheme}:// has no option {quoted(name)}{nearest(name, OPTIONS[scheme])}"
            )
        try:
            parse_option(value)
        except ValueError as error:
            raise InvalidURL(f"{name}={value} for {scheme}://: {error}") from error


def _check_location(url: StoreURL) -> None:
    if url.scheme == "sqlite" and not url.location:
        raise InvalidURL("sqlite:// names no file: write it like sqlite:///path/to/file")
    if (port := _PORTS.get(url.scheme)) is None:
        return
    if not url.location:
        raise InvalidURL(f"{url} names no host: write it like {url.scheme}://HOST:{port}")
    url.hosts(port)  # raises for an invalid host
    if url.scheme in REDIS:
        _check_redis(url)


def _check_redis(url: StoreURL) -> None:
    segments = url.segments
    if url.scheme == "redis+sentinel":
        if not segments or not segments[0]:
            raise InvalidURL(
                f"{url} does not name the master: write it like redis+sentinel://HOST:26379/mymaster"
            )
        segments = segments[1:]
    elif url.scheme != "redis+cluster" and len(url.hosts(6379)) > 1:
        raise InvalidURL(
            f"{url} names several hosts: use redis+cluster:// for a cluster, redis+sentinel:// for "
            "Sentinel"
        )
    if segments and (url.scheme == "redis+cluster" or len(segments) > 1):
        raise InvalidURL(f"{url}: only a database may follow the hosts, and nothing on a cluster")
    if segments and not segments[0].isdecimal():
        raise InvalidURL(f"{url}: the database {quoted(segments[0])} must be a number")


def _split_location(scheme: str, location: str) -> tuple[str, str, str]:
    """User, password and location. Names and paths may contain an `@`."""
    if scheme == "memory":
        return "", "", location
    if scheme == "sqlite":
        path = unquote(location, errors="surrogateescape")
        if "\0" in path:
            raise InvalidURL("the path of sqlite:// contains a zero byte")
        return "", "", path
    userinfo, _, hosts = location.rpartition("@")
    user, _, password = userinfo.partition(":")
    return user, password, hosts


def _quoted(path: str) -> str:
    """A path as part of a URL, with as few characters escaped as possible."""
    return re.sub(
        r"[%?#\x00-\x1f\x7f\udc80-\udcff]",
        lambda match: quote(match[0], safe="", errors="surrogateescape"),
        path,
    )


def _password(scheme: str, given: str, options: Mapping[str, str]) -> str:
    if given or not (file := options.get("password_file")):
        kind = "REDIS" if scheme in REDIS else "ETCD"
        return given or os.environ.get(f"MOORING_{kind}_PASSWORD", "")
    try:
        return read_password(Path(file).expanduser())
    except OSError as error:
        raise InvalidURL(f"password_file={file} cannot be read: {error.strerror}") from error


def read_password(file: Path) -> str:
    """Read the password from a `password_file`. Read it at every login: operators rotate passwords.
    Raises `OSError`, also if the file is not UTF-8."""
    try:
        return file.read_text("utf-8").strip()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is not UTF-8") from error


def _with_port(number: int, host: str, port: int) -> str:
    name, separator, given = host.rpartition(":")
    if host.endswith("]") or not separator:  # [::1], or a bare name
        name, given = host, str(port)
    bracketed = name.startswith("[") and name.endswith("]")
    plain = re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
    if not (bracketed or plain) or not given.isdecimal() or not 0 < int(given) < 65536:
        # The host is not shown: if a host was forgotten, this is a user and a password.
        raise InvalidURL(f"host {number} of the URL is invalid: write it like HOST:{port}")
    return f"{name}:{given}"


def _masked(text: str) -> str:
    """A URL that could not be parsed, without any part that may hold a password."""
    scheme, separator, rest = text.partition("://")
    if not separator or "@" in rest or ":" in rest.split("?")[0].replace("://", ""):
        return f"{scheme}://…" if separator and scheme.isalpha() else "the URL"
    return f"{scheme}://{rest.split('?')[0]}"
