"""The settings of `mooring serve`: flags over a file, all checked before anything starts."""

from __future__ import annotations

import dataclasses
import fnmatch
import ipaddress
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from mooring.connection_limit import LOOPBACK, PER_ADDRESS, ConnectionLimit
from mooring.errors import InvalidRequest
from mooring.formatting import in_words, quoted, yaml_in_words
from mooring.hub import EMBEDDED, no_store
from mooring.names import nearest
from mooring.server.auth.csrf import parse_host
from mooring.server.auth.data_dir import data_folder, expanded
from mooring.server.auth.rate_limits import Rates
from mooring.server.live.problems import GracePeriods, Severity
from mooring.settings import loader as configuration
from mooring.settings.loader import Seconds
from mooring.settings.registry import RegistrySettings
from mooring.settings.registry import parse as parse_registry
from mooring.store.url import REDIS, StoreURL, check_quota, parse
from mooring.tenants.keys import TenantKeys


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhook: str = ""
    """Where to POST what is new and what is over, as JSON; empty: nowhere."""
    token_file: str = ""
    """A file with a token that is sent along as `Authorization: Bearer`, read at each try."""
    ca: str = ""
    """A file with the authorities that sign for the webhook; by default the system's."""
    severity: Severity = "warning"
    """Nobody is told of what is less bad than this."""
    after: Seconds = 30.0
    """How long a problem must last to be told, and be gone to be over."""
    timeout: Seconds = 10.0
    """Of one try."""
    draining: Seconds = 600.0
    """How long an instance may drain before that is a problem."""
    emptied: Seconds = 3600.0
    """How long a service that lost its last instance is critical, and one whose last instance left
    in order is spoken of; then it is rather one that was given up."""

    def __repr__(self) -> str:
        return f"AlertSettings(webhook={self.where!r}, severity={self.severity!r})"

    @property
    def where(self) -> str:
        """The webhook, as far as it can be shown: its path is often as good as a password."""
        return masked(self.webhook)

    @property
    def host(self) -> str:
        """The webhook's host and port: a name in its path may be as good as a password too."""
        return urllib.parse.urlsplit(self.webhook).netloc.rpartition("@")[2]

    @property
    def grace_periods(self) -> GracePeriods:
        return GracePeriods(self.draining, self.emptied)


def parse_alerts(told: object) -> AlertSettings:
    """The settings below `alerts:`. Raises `InvalidRequest`, naming the setting by its dotted path,
    for anything that is unknown, of a wrong kind or makes no sense."""
    return _checked_alerts(configuration.convert("alerts", told, AlertSettings))


def _checked_alerts(settings: AlertSettings) -> AlertSettings:
    """The same settings, whole."""
    if settings.webhook:
        _check_webhook(settings.webhook)
    for name in ("token_file", "ca"):
        file = getattr(settings, name)
        if file and not settings.webhook:
            raise InvalidRequest(f"alerts.{name}: there is no webhook that it is for")
        if file and not Path(file).is_file():
            raise InvalidRequest(f"alerts.{name}: there is no file {file}")
    if settings.token_file and not _is_safe(settings.webhook):
        raise InvalidRequest(
            "alerts.token_file: the webhook is on another machine and without TLS, where everybody "
            "in between could read the token: let alerts.webhook be https://"
        )
    return settings


def _is_safe(webhook: str) -> bool:
    """Whether nobody reads on the way what is sent there."""
    parts = urllib.parse.urlsplit(webhook)
    host = parts.hostname or ""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    return here or parts.scheme == "https"


def masked(webhook: str) -> str:
    """A URL without what may be secret in it."""
    if not webhook:
        return ""
    parts = urllib.parse.urlsplit(webhook)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


def _check_webhook(webhook: str) -> None:
    try:
        parts = urllib.parse.urlsplit(webhook)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"alerts.webhook is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise InvalidRequest("alerts.webhook is no URL like https://HOST/PATH")
    if not webhook.isascii() or not webhook.isprintable() or " " in webhook:
        raise InvalidRequest("alerts.webhook has a character that no URL has")
    if "@" in parts.netloc:
        raise InvalidRequest("alerts.webhook: put a password into alerts.token_file, not here")


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


def parse_checks(told: object) -> CheckSettings:
    """The settings below `checks:`. Raises `InvalidRequest`, naming the setting by its dotted path,
    for anything that is unknown, of a wrong kind or makes no sense."""
    if isinstance(told, Mapping) and isinstance(told.get("protocols"), Mapping):
        # As YAML reads an `off` without quotes.
        named = {name: NONE if to is False else to for name, to in told["protocols"].items()}
        told = {**told, "protocols": named}
    return _checked_checks(configuration.convert("checks", told, CheckSettings))


def _checked_checks(settings: CheckSettings) -> CheckSettings:
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


HTTP = "127.0.0.1:7480"
ETCD = "127.0.0.1:2379"


class TLSFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files; with `client_ca`, clients must show a certificate that it signed."""

    cert: str
    key: str
    client_ca: str = ""


class ConnectionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many connections one address may have, over HTTP, etcd's API and xDS each."""

    per_address: int = PER_ADDRESS
    """0: no limit."""
    exempt: tuple[str, ...] = LOOPBACK
    """Addresses and networks without that limit, such as those of proxies."""

    def limit(self) -> ConnectionLimit:
        return ConnectionLimit(self.per_address, exempt=self.exempt)


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str = ""
    """The store's URL; by default a file in the user's data folder."""
    registry: str = ""
    """The registry's URL where it is not in the store: `redis://…`. In the file it may be a section
    instead: the registry's settings, and among them its `url`."""
    registry_settings: RegistrySettings | None = None
    """Those of that section, under the environment's; None where there is none."""
    cleanup: bool = True
    """Whether to take out the dead of a registry on Redis."""
    http: str = HTTP
    etcd: str | None = None
    """Where to speak etcd's API: on loopback by default for an embedded store; "off": nowhere."""
    xds: str = "off"
    """Where to feed Envoy and gRPC with what is registered; "off": nowhere."""
    tls: TLSFiles | None = None
    users: dict[str, str] = {}
    """Names and passwords; with any, every call over etcd's API needs a login."""
    insecure: bool = False
    """Listen beyond loopback without TLS or without users."""
    data: str = ""
    """The folder of tokens and the audit, and of the store where none is named; by default the
    user's."""
    quota: str = ""
    """The size that an embedded store may have, like 4GiB, or "off". It wins over the URL's."""
    hosts: tuple[str, ...] = ()
    """The names by which the HTTP face may be called, beside those of loopback and the address that
    it listens at."""
    tenants_namespace: str = ""
    """The key prefix of the tenants; empty: `MOORING_TENANTS_NAMESPACE`, or `jxt`."""
    console: bool = True
    """Whether the HTTP face has the console and its login, beside the API."""
    rates: Rates = Rates()
    connections: ConnectionSettings = ConnectionSettings()
    alerts: AlertSettings = AlertSettings()
    checks: CheckSettings = CheckSettings()

    def __repr__(self) -> str:
        return (
            f"ServerSettings(store={self.url()}, registry={self.registry_url()}, "
            f"http={self.http!r}, etcd={self.etcd!r}, xds={self.xds!r})"
        )

    def url(self) -> StoreURL:
        url = StoreURL("sqlite", str(self.folder() / "store"))
        if self.store:
            url = parse(self.store)
        if self.quota:
            url = dataclasses.replace(url, options={**url.options, "quota": self.quota})
        return url

    def folder(self) -> Path:
        """Where the server keeps what is its own."""
        return expanded(self.data).absolute() if self.data else data_folder()

    def registry_url(self) -> StoreURL:
        return parse(self.registry) if self.registry else self.url()

    @property
    def registry_apart(self) -> bool:
        """Whether the registry is not in the store."""
        return bool(self.registry) or self.url().scheme in REDIS

    @property
    def sweeps(self) -> bool:
        return self.cleanup and self.registry_url().scheme in REDIS


def load(file: Path | None, **flags: object) -> ServerSettings:
    """The settings of a file with the flags that were given over them."""
    told = {} if file is None else _read(file)
    section = None
    if isinstance(told.get("registry"), Mapping):
        section = dict(told.pop("registry"))
        told["registry"] = section.pop("url", "")
    told.update({name: value for name, value in flags.items() if value})
    known = [name for name in ServerSettings.__struct_fields__ if name != "registry_settings"]
    for name in told:
        if name not in known:
            raise InvalidRequest(f"{file} has no setting {quoted(name)}{nearest(str(name), known)}")
    for switch in ("cleanup", "console"):
        if told.get(switch) in ("on", "off"):
            told[switch] = told[switch] == "on"
    alerts = parse_alerts(told.pop("alerts", None))
    checks = parse_checks(told.pop("checks", None))
    for face in ("http", "etcd", "xds", "quota"):
        if told.get(face) is False:
            told[face] = "off"  # as YAML reads an `off` without quotes
    if type(told.get("quota")) is int:
        told["quota"] = quoted(told["quota"])
    try:
        settings = msgspec.convert(told, ServerSettings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(in_words(error, str(file or "the settings"))) from error
    settings = msgspec.structs.replace(settings, alerts=alerts, checks=checks)
    if section is not None:
        inner = parse_registry({"registry": section})
        settings = msgspec.structs.replace(settings, registry_settings=inner)
    return checked(settings)


def _read(file: Path) -> dict[Any, Any]:
    try:
        told = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is no text in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(f"{file} is no YAML: {yaml_in_words(error)}") from error
    if not isinstance(told, dict):
        raise InvalidRequest(f"{file} must hold settings like `http: {HTTP}`")
    return told


def checked(settings: ServerSettings) -> ServerSettings:
    """The same settings, whole and allowed."""
    embedded = settings.url().scheme in EMBEDDED
    on_redis = settings.url().scheme in REDIS
    settings.registry_url()  # raises for one that is none
    TenantKeys(settings.tenants_namespace or None)  # raises for an empty one
    if on_redis and settings.registry:
        raise no_store(settings.url())
    if settings.quota:
        if not embedded:
            raise InvalidRequest(
                f"--quota {settings.quota}: {settings.url()} is no embedded store (sqlite://, "
                "memory://). Set its quota there, and leave --quota out"
            )
        check_quota(settings.quota)
    if settings.etcd and settings.etcd != "off" and on_redis:
        raise InvalidRequest(
            f"--etcd {settings.etcd}: {settings.url()} keeps a registry and has no keys for "
            "etcd's API to serve. Leave --etcd out, or name an embedded store with --store and "
            "this one with --registry"
        )
    if settings.etcd and settings.etcd != "off" and not embedded:
        raise InvalidRequest(
            f"--etcd {settings.etcd}: {settings.url()} speaks etcd's API itself, or cannot; only "
            "an embedded store (sqlite://, memory://) is served here. Leave --etcd out"
        )
    etcd = settings.etcd or (ETCD if embedded else "off")
    if etcd != "off" and (namespace := settings.url().options.get("namespace")):
        raise InvalidRequest(
            f"namespace={namespace} in the store's URL: etcd's API is served for the whole store, "
            "not below a prefix. Leave it out, or serve without that API (--etcd off)"
        )
    for flag, address in (("--http", settings.http), ("--etcd", etcd), ("--xds", settings.xds)):
        if address == "off":
            continue
        host, _ = split(flag, address)
        # Only etcd's API knows users.
        safe = settings.tls is not None and (flag != "--etcd" or bool(settings.users))
        if not is_loopback(host) and not safe and not settings.insecure:
            raise InvalidRequest(
                f"{flag} {address} can be reached from other machines: that needs TLS"
                f"{' and users' if flag == '--etcd' else ''} in the --config file, or --insecure"
            )
    if settings.checks.enabled and settings.http == "off":
        raise InvalidRequest(
            "checks.enabled: nobody could see what they find with --http off. Give it an address"
        )
    for named in settings.hosts:
        place = parse_host(named)
        if place is None or place.port is not None:
            raise InvalidRequest(
                f"hosts: {quoted(named)} is no host's name: write it like mooring.lan"
            )
    for rate in Rates.__struct_fields__:
        if getattr(settings.rates, rate) < 0:
            raise InvalidRequest(f"rates.{rate} is less than 0, which is no limit at all")
    if settings.connections.per_address < 0:
        raise InvalidRequest("connections.per_address is negative: 0 means no limit")
    for network in settings.connections.exempt:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            raise InvalidRequest(
                f"connections.exempt: {network} is neither an address nor a network: write it like "
                "192.0.2.7 or 10.0.0.0/8"
            ) from error
    url = settings.url()
    if url.scheme == "memory" and not url.location:
        # All faces are of one store: without a name, each would open a store of its own.
        url = dataclasses.replace(url, location="served")
        settings = msgspec.structs.replace(settings, store=str(url))
    return msgspec.structs.replace(settings, etcd=etcd)


def split(flag: str, address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535 or not host:
        raise InvalidRequest(f"{flag} {address} is no address: write it like 127.0.0.1:2379")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
