"""A store's URL: parsed once, checked whole, its password never shown.

    memory://[name][?history=100000&history_age=1h&history_bytes=256MiB&quota=2GiB]
    sqlite:///path/to/file[?history=…&history_age=…&history_bytes=…&quota=…]
    etcd://[user:password@]host[:2379][,host…][?user=&password=&password_file=&timeout=5s]
    etcds://…                                  [&ca=FILE&cert=FILE&key=FILE&server_name=NAME]

and where a registry alone is kept:

    redis://[user:password@]host[:6379][/database][?prefix=registry&timeout=3s&expire=2m]
    rediss://…                                 [&ca=FILE&cert=FILE&key=FILE]
    redis+cluster://host:port[,host:port…]     [?tls=on…]
    redis+sentinel://host:26379[,host…]/NAME[/database][?sentinel_password=…&tls=on…]

Every scheme takes `namespace=PREFIX`, below which everything is put. In the path of a file `?`, `#`
and `%` are written as %3F, %23 and %25, and any other character may be.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from mooring import durations
from mooring.errors import InvalidURL
from mooring.formatting import quoted
from mooring.names import nearest

MASK = "***"
_SECRET = ("sentinel_password",)


def _text(value: str) -> str:
    if not value:
        raise ValueError("it is empty: leave it out")
    return value


def _count(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError("it must be a number from 1 up")
    return int(value)


_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def _bytes(value: str) -> int:
    match = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)?", value)
    if match is None or not int(match[1]):
        raise ValueError("it must be a number of bytes from 1 up, like 1000000 or 256MiB")
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
    if not (seconds := durations.parse(value)):
        raise ValueError("it must be more than nothing")
    return seconds


def check_quota(value: str) -> None:
    try:
        _quota(value)
    except ValueError as error:
        raise InvalidURL(f"the quota {value}: {error}") from error


Options = Mapping[str, Callable[[str], object]]

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


def _part_of_a_key(value: str) -> str:
    if re.search(r"[\s{}\x00-\x1f\x7f]", _text(value)):
        raise ValueError("no spaces, control characters or braces can be in a key")
    return value


_REDIS: Options = {
    "namespace": _part_of_a_key,
    "prefix": _part_of_a_key,
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
"""The schemes there are, and the options of each with what reads them."""

_PORTS = {
    "etcd": 2379,
    "etcds": 2379,
    "redis": 6379,
    "rediss": 6379,
    "redis+cluster": 6379,
    "redis+sentinel": 26379,
}

REDIS = ("redis", "rediss", "redis+cluster", "redis+sentinel")
"""The schemes of what keeps a registry and nothing else."""


@dataclass(frozen=True, slots=True)
class StoreURL:
    """The parts of a URL. `str()` gives it back with the password masked."""

    scheme: str
    location: str
    """What stands between `//` and `?`: hosts, a name, or the path of a file."""
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        secret = f":{MASK}" if self.password else ""
        user = f"{self.user}{secret}@" if self.user else ""
        options = "&".join(
            f"{name}={MASK if name in _SECRET else value}" for name, value in self.options.items()
        )
        where = _quoted(self.location) if self.scheme == "sqlite" else self.location
        return f"{self.scheme}://{user}{where}{'?' if options else ''}{options}"

    def hosts(self, port: int) -> tuple[str, ...]:
        """The hosts, each with its port."""
        where = self.location
        if self.scheme in REDIS:
            where = where.partition("/")[0]
        hosts = enumerate(where.split(","), 1)
        return tuple(_with_port(number, host.strip(), port) for number, host in hosts)

    @property
    def segments(self) -> tuple[str, ...]:
        """What follows the hosts: the database, or of sentinels the master's name and database."""
        return tuple(self.location.split("/")[1:])

    def path(self, name: str) -> Path | None:
        return Path(value).expanduser() if (value := self.options.get(name)) else None

    @property
    def file(self) -> Path:
        """The file of `sqlite://`."""
        try:
            return Path(self.location).expanduser()
        except RuntimeError as error:
            raise InvalidURL(f"{self}: there is no such home folder") from error

    def size(self, name: str, default: int) -> int:
        return _bytes(self.options[name]) if name in self.options else default

    def quota(self, default: int) -> int:
        return _quota(self.options["quota"]) if "quota" in self.options else default

    def count(self, name: str, default: int) -> int:
        return _count(self.options[name]) if name in self.options else default

    def seconds(self, name: str, default: float) -> float:
        return _duration(self.options[name]) if name in self.options else default


def parse(text: str) -> StoreURL:
    """The parts of a store's URL, or `InvalidURL`, which names the part and never a password."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise InvalidURL("this is no store URL: write it like etcd://HOST:2379 or memory://")
    if scheme not in OPTIONS:
        raise InvalidURL(f"no store speaks {scheme}://{nearest(scheme, OPTIONS)}")
    where, _, query = rest.partition("?")
    if "#" in rest:
        raise InvalidURL(f"{_masked(text)} has a '#': write it as %23")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise InvalidURL(f"the options of {_masked(text)} are not name=value") from None
    for name, value in options.items():
        if (read := OPTIONS[scheme].get(name)) is None:
            raise InvalidURL(
                f"{scheme}:// has no option {quoted(name)}{nearest(name, OPTIONS[scheme])}"
            )
        try:
            read(value)
        except ValueError as error:
            raise InvalidURL(f"{name}={value} for {scheme}://: {error}") from error
    user, password, location = _place(scheme, where.rstrip("/"))
    if password := options.pop("password", "") or unquote(password):
        options.pop("password_file", None)
    url = StoreURL(
        scheme,
        location,
        options.pop("user", "") or unquote(user),
        _password(scheme, password, options),
        options,
    )
    if scheme == "sqlite" and not location:
        raise InvalidURL("sqlite:// names no file: write it like sqlite:///path/to/file")
    if (port := _PORTS.get(scheme)) is None:
        return url
    if not location:
        raise InvalidURL(f"{url} names no host: write it like {scheme}://HOST:{port}")
    url.hosts(port)  # raises for one that is none
    if ("cert" in options) != ("key" in options):
        raise InvalidURL("a client certificate needs both: cert=FILE and key=FILE")
    if scheme.startswith("redis"):
        _check_redis(url)
    return url


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
            f"{url} names several hosts: of a cluster write redis+cluster://, of sentinels "
            "redis+sentinel://"
        )
    if segments and (url.scheme == "redis+cluster" or len(segments) > 1):
        raise InvalidURL(f"{url}: nothing can follow its hosts but a database, and on a cluster no")
    if segments and not segments[0].isdecimal():
        raise InvalidURL(f"{url}: the database {quoted(segments[0])} is no number")


def _place(scheme: str, where: str) -> tuple[str, str, str]:
    """User, password and location. What has no users may have an `@` in its name."""
    if scheme == "memory":
        return "", "", where
    if scheme == "sqlite":
        path = unquote(where, errors="surrogateescape")
        if "\0" in path:
            raise InvalidURL("the path of sqlite:// has a zero byte, which no path can have")
        return "", "", path
    userinfo, _, location = where.rpartition("@")
    user, _, password = userinfo.partition(":")
    return user, password, location


def _quoted(path: str) -> str:
    """A path as it stands in a URL, readable as far as can be."""
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
    """The password in a `password_file`. Read it at every login: operators rotate passwords.
    Raises `OSError`, also for a file that is not UTF-8."""
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
        # Not shown: where a host was forgotten, this is a user and a password.
        raise InvalidURL(f"host {number} of the URL is no host: write it like HOST:{port}")
    return f"{name}:{given}"


def _masked(text: str) -> str:
    """A URL that could not be parsed, fit to be shown: whatever may hold a password is left out."""
    scheme, separator, rest = text.partition("://")
    if not separator or "@" in rest or ":" in rest.split("?")[0].replace("://", ""):
        return f"{scheme}://…" if separator and scheme.isalpha() else "what was given"
    return f"{scheme}://{rest.split('?')[0]}"
