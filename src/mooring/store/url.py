"""A store's URL: parsed once, checked whole, its password never shown.

    memory://[name][?history=100000&history_age=1h]
    sqlite:///path/to/file[?history=…&history_age=…]
    etcd://[user:password@]host[:2379][,host…][?user=&password=&password_file=&timeout=5s]
    etcds://…                                  [&ca=FILE&cert=FILE&key=FILE&server_name=NAME]

Every scheme takes `namespace=PREFIX`, below which everything is put.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from mooring.errors import InvalidURL

T = TypeVar("T")

MASK = "***"

_COMMON = ("namespace",)
_EMBEDDED = (*_COMMON, "history", "history_age")
_ETCD = (*_COMMON, "user", "password", "password_file", "timeout")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "memory": _EMBEDDED,
    "sqlite": _EMBEDDED,
    "etcd": _ETCD,
    "etcds": (*_ETCD, "ca", "cert", "key", "server_name"),
}
"""The schemes there are, and the options of each."""


@dataclass(frozen=True, slots=True)
class StoreURL:
    """The parts of a URL. `str()` gives it back with the password masked."""

    scheme: str
    location: str
    """What stands between `//` and `?`: hosts or a name."""
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        secret = f":{MASK}" if self.password else ""
        user = f"{self.user}{secret}@" if self.user else ""
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}://{user}{self.location}{'?' if options else ''}{options}"

    def hosts(self, port: int) -> tuple[str, ...]:
        """The hosts, each with its port."""
        return tuple(_with_port(host.strip(), port, self) for host in self.location.split(","))

    def path(self, name: str) -> Path | None:
        return Path(value).expanduser() if (value := self.options.get(name)) else None

    def option(self, name: str, parse: Callable[[str], T], default: T) -> T:
        if name not in self.options:
            return default
        try:
            return parse(self.options[name])
        except ValueError as error:
            raise InvalidURL(f"{name}={self.options[name]} in {self}: {error}") from error


def parse(text: str) -> StoreURL:
    """The parts of a store's URL, or `InvalidURL`, which names the part and never a password."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise InvalidURL(f"{_masked(text)!r} is no store URL: write it like etcd://HOST:2379")
    if scheme not in OPTIONS:
        raise InvalidURL(f"no store speaks {scheme}://{_nearest(scheme, OPTIONS)}")
    where, _, query = rest.partition("?")
    if "#" in rest:
        raise InvalidURL(f"{_masked(text)} has a '#': write it as %23")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise InvalidURL(f"the options of {_masked(text)} are not name=value") from None
    for name in options:
        if name not in OPTIONS[scheme]:
            raise InvalidURL(f"{scheme}:// has no option {name!r}{_nearest(name, OPTIONS[scheme])}")
    userinfo, _, location = where.rstrip("/").rpartition("@")
    user, _, password = userinfo.partition(":")
    url = StoreURL(
        scheme,
        location,
        options.pop("user", "") or unquote(user),
        _password(options.pop("password", "") or unquote(password), options),
        options,
    )
    if scheme == "sqlite" and not location:
        raise InvalidURL("sqlite:// names no file: write it like sqlite:///path/to/file")
    if scheme.startswith("etcd") and not location:
        raise InvalidURL(f"{url} names no host: write it like {scheme}://HOST:2379")
    return url


def _password(given: str, options: Mapping[str, str]) -> str:
    if given or not (file := options.get("password_file")):
        return given or os.environ.get("MOORING_ETCD_PASSWORD", "")
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as error:
        raise InvalidURL(f"password_file={file} cannot be read: {error.strerror}") from error


def _with_port(host: str, port: int, url: StoreURL) -> str:
    name, separator, given = host.rpartition(":")
    if host.endswith("]") or not separator:  # [::1], or a bare name
        name, given = host, str(port)
    if not name or not given.isdigit() or not 0 < int(given) < 65536 or "/" in name:
        raise InvalidURL(f"{host!r} in {url} is no host: write it like HOST:{port}")
    return f"{name}:{given}"


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"{meant} (there are {', '.join(known)})"


def _masked(text: str) -> str:
    """A URL that could not be parsed, fit to be shown: whatever may be a password is left out."""
    scheme, separator, rest = text.partition("://")
    rest = rest.split("?")[0].rpartition("@")[2]
    return f"{scheme}{separator}{rest}"
