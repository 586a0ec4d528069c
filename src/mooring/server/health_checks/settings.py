"""The settings of active checks: `checks:` in the file of `mooring serve`."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted
from mooring.settings import loader as configuration
from mooring.settings.loader import Seconds

NONE = "none"
"""In place of a checker's name: nobody checks that protocol."""

_PATH = re.compile(r"/(?!/)[!-~]{0,199}")


class CheckSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False
    services: tuple[str, ...] = ("*",)
    """Which are checked, by name or pattern: `orders`, `shop/*`."""
    interval: Seconds = 10.0
    """Between two probes of an instance, more or less."""
    timeout: Seconds = 2.0
    """Of one probe."""
    failures: Annotated[int, msgspec.Meta(ge=1)] = 2
    """So many in a row make a failure."""
    budget: Annotated[int, msgspec.Meta(ge=1)] = 100
    """At most so many probes at once, and so many that start in a second."""
    path: str = "/"
    """Of http(s) and ws(s)."""
    paths: dict[str, str] = {}
    """The same by service, or by pattern; the first that fits counts."""
    metadata_path: bool = False
    """Whether an instance may name its path itself, as `healthPath` in its metadata."""
    networks: tuple[str, ...] = ()
    """Only what is in one of these is probed; empty: all but loopback and what never is."""
    protocols: dict[str, str] = {}
    """The checker for a protocol, by the name of the one that has it: `redis: tcp`."""
    ca: str = ""
    """A file with the authorities that sign for https, wss and grpcs; by default the system's."""

    def checks(self, service: str) -> bool:
        return any(fnmatch.fnmatchcase(service, pattern) for pattern in self.services)

    def path_for(self, service: str) -> str:
        if service in self.paths:
            return self.paths[service]
        fitting = (p for name, p in self.paths.items() if fnmatch.fnmatchcase(service, name))
        return next(fitting, self.path)


def is_path(text: str) -> bool:
    """Whether it can stand in a request as it is: printable ASCII without spaces from one slash on,
    and 200 characters at most. A second slash at its beginning would name another host."""
    return _PATH.fullmatch(text) is not None


def parse(told: object) -> CheckSettings:
    """The settings below `checks:`. Raises `InvalidRequest`, naming the setting by its dotted path,
    for anything that is unknown, of a wrong kind or makes no sense."""
    if isinstance(told, Mapping) and isinstance(told.get("protocols"), Mapping):
        # As YAML reads an `off` without quotes.
        named = {name: NONE if to is False else to for name, to in told["protocols"].items()}
        told = {**told, "protocols": named}
    return checked(configuration.convert("checks", told, CheckSettings))


def checked(settings: CheckSettings) -> CheckSettings:
    """The same settings, whole."""
    for name, path in {"path": settings.path, **_dotted("paths", settings.paths)}.items():
        if not is_path(path):
            raise InvalidRequest(
                f"checks.{name}: {quoted(path)} is no path: it starts with one slash and has at "
                "most 200 characters of ASCII without spaces"
            )
    for network in settings.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise InvalidRequest(
                f"checks.networks: {quoted(network)} is no network, or names a host in it: write "
                "it like 10.0.0.0/8"
            ) from None
    if settings.ca and not Path(settings.ca).is_file():
        raise InvalidRequest(f"checks.ca: there is no file {settings.ca}")
    return settings


def _dotted(section: str, named: Mapping[str, str]) -> dict[str, str]:
    return {f"{section}.{name}": value for name, value in named.items()}
