"""The settings of `mooring serve`: a file and flags, validated before anything starts."""

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

from mooring.addresses import is_loopback
from mooring.backends import EMBEDDED, no_store
from mooring.connection_limit import LOOPBACK, PER_ADDRESS, ConnectionLimit
from mooring.errors import InvalidRequest
from mooring.formatting import quoted, yaml_in_words
from mooring.messages import message
from mooring.messages.validation import rejection
from mooring.names import nearest
from mooring.server.auth.data_dir import data_folder, expanded
from mooring.server.auth.host_and_csrf import parse_host
from mooring.server.auth.rate_limits import Rates
from mooring.server.live.problems import GracePeriods, Severity
from mooring.settings import RegistrySettings, loader
from mooring.settings import parse as parse_registry
from mooring.settings.loader import Seconds
from mooring.store.url import StoreURL, check_quota, parse
from mooring.tenants.keys import TenantKeys


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhook: str = ""
    """The URL that receives new and resolved problems as JSON; empty: no alerts."""
    token_file: str = ""
    """A file with a token that is sent as `Authorization: Bearer`. It is read for each request."""
    ca: str = ""
    """A file with the CA certificates for the webhook; by default those of the system."""
    severity: Severity = "warning"
    """The lowest severity that is sent."""
    after: Seconds = 30.0
    """How long a problem must last before it is sent, and be absent before it is resolved."""
    timeout: Seconds = 10.0
    """The timeout of one request."""
    draining: Seconds = 600.0
    """How long an instance may drain before that is a problem."""
    emptied: Seconds = 3600.0
    """How long a service without instances is a problem: critical if it lost its last instance, a
    notice if that instance deregistered."""

    def __repr__(self) -> str:
        return f"AlertSettings(webhook={self.where!r}, severity={self.severity!r})"

    @property
    def where(self) -> str:
        """The webhook without its path, which often serves as a password."""
        if not self.webhook:
            return ""
        return f"{urllib.parse.urlsplit(self.webhook).scheme}://{self.host}/…"

    @property
    def host(self) -> str:
        """The host and port of the webhook."""
        return urllib.parse.urlsplit(self.webhook).netloc.rpartition("@")[2]

    @property
    def grace_periods(self) -> GracePeriods:
        return GracePeriods(self.draining, self.emptied)


def parse_alerts(section: object) -> AlertSettings:
    """The settings in the section `alerts:`. Raises `InvalidRequest` with the dotted path of a
    setting that is unknown or invalid."""
    settings = loader.convert("alerts", section, AlertSettings)
    if settings.webhook:
        _check_webhook(settings.webhook)
    for name in ("token_file", "ca"):
        file = getattr(settings, name)
        if file and not settings.webhook:
            raise InvalidRequest(f"alerts.{name} requires alerts.webhook")
        if file and not Path(file).is_file():
            raise InvalidRequest(f"alerts.{name}: {file} does not exist")
    if settings.token_file:
        url = urllib.parse.urlsplit(settings.webhook)
        if url.scheme != "https" and not is_loopback(url.hostname or ""):
            raise InvalidRequest(
                "alerts.token_file: the token would be sent to another machine without TLS: use an "
                "https:// URL for alerts.webhook"
            )
    return settings


def _check_webhook(webhook: str) -> None:
    try:
        url = urllib.parse.urlsplit(webhook)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise InvalidRequest(f"alerts.webhook is not a valid URL: {error}") from error
    if url.scheme not in ("http", "https") or not host or port == 0:
        raise InvalidRequest("alerts.webhook: expected a URL like https://HOST/PATH")
    if not webhook.isascii() or not webhook.isprintable() or " " in webhook:
        raise InvalidRequest("alerts.webhook contains a character that is invalid in URLs")
    if "@" in url.netloc:
        raise InvalidRequest(
            "alerts.webhook must not contain a password: put it into alerts.token_file"
        )


NONE = "none"
"""The name that disables the checks of a protocol."""

_PATH = re.compile(r"/(?!/)[!-~]{0,199}")


class CheckSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Whether the server checks the health of instances."""
    services: tuple[str, ...] = ("*",)
    """The services to check, by name or pattern: `orders`, `shop/*`."""
    interval: Seconds = 10.0
    """The average time between two probes of an instance."""
    timeout: Seconds = 2.0
    """The timeout of one probe."""
    failures: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Consecutive failed probes after which the check fails."""
    budget: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Maximum number of concurrent probes, and of probes that start in one second."""
    path: str = "/"
    """The path of http(s) and ws(s) probes."""
    paths: dict[str, str] = {}
    """The path by service, or by pattern; the first match applies."""
    metadata_path: bool = False
    """Whether instances may set their path as `healthPath` in their metadata."""
    networks: tuple[str, ...] = ()
    """Networks that may be probed; empty: all except loopback and those that are always blocked."""
    protocols: dict[str, str] = {}
    """Checkers by protocol, named by the protocol that they implement: `redis: tcp`."""
    ca: str = ""
    """A file with the CA certificates for https, wss and grpcs; by default those of the system."""

    def checks(self, service: str) -> bool:
        return any(fnmatch.fnmatchcase(service, pattern) for pattern in self.services)

    def path_for(self, service: str) -> str:
        if service in self.paths:
            return self.paths[service]
        matches = (p for name, p in self.paths.items() if fnmatch.fnmatchcase(service, name))
        return next(matches, self.path)


def is_path(text: str) -> bool:
    """Whether it can be the path of a request: printable ASCII without spaces that starts with one
    slash, at most 200 characters. A second slash at the start would name another host."""
    return _PATH.fullmatch(text) is not None


def parse_checks(section: object) -> CheckSettings:
    """The settings in the section `checks:`. Raises `InvalidRequest` with the dotted path of a
    setting that is unknown or invalid."""
    if isinstance(section, Mapping) and isinstance(section.get("protocols"), Mapping):
        # YAML reads `off` without quotes as false.
        protocols = {
            name: NONE if checker is False else checker
            for name, checker in section["protocols"].items()
        }
        section = {**section, "protocols": protocols}
    settings = loader.convert("checks", section, CheckSettings)
    service_paths = {f"paths.{name}": path for name, path in settings.paths.items()}
    for name, path in {"path": settings.path, **service_paths}.items():
        if not is_path(path):
            raise InvalidRequest(
                f"checks.{name}: {quoted(path)} is not a valid path: expected one slash and up to "
                "199 more ASCII characters without spaces"
            )
    for network in settings.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise InvalidRequest(
                f"checks.networks: {quoted(network)} is not a network like 10.0.0.0/8, or has host "
                "bits set"
            ) from None
    if settings.ca and not Path(settings.ca).is_file():
        raise InvalidRequest(f"checks.ca: {settings.ca} does not exist")
    return settings


HTTP = "127.0.0.1:7480"
ETCD = "127.0.0.1:2379"


class TLSFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM format. With `client_ca`, clients must present a certificate that it signed."""

    cert: str
    """A file with the certificate of the server and its chain."""
    key: str
    """A file with the private key."""
    client_ca: str = ""
    """A file with CA certificates. If set, all clients must present a certificate."""


class ConnectionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the connections of one address, separately for HTTP, etcd's API and xDS."""

    per_address: int = PER_ADDRESS
    """0: no limit."""
    exempt: tuple[str, ...] = LOOPBACK
    """Addresses and networks without a limit, such as those of proxies."""

    def limit(self) -> ConnectionLimit:
        return ConnectionLimit(self.per_address, exempt=self.exempt)


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str = ""
    """The URL of the store; by default a file in the user's data folder."""
    registry: str = ""
    """The URL of the registry if it is not in the store: `redis://…`. In the file it may be a
    section with the settings of the registry, including its `url`."""
    registry_settings: RegistrySettings | None = None
    """The settings of that section. Environment variables override them."""
    cleanup: bool = True
    """Whether to evict expired instances of a registry on Redis."""
    http: str = HTTP
    """The address of the admin API and the console."""
    etcd: str | None = None
    """The address of etcd's API; "off" disables it. For an embedded store it is on by default."""
    xds: str = "off"
    """The address of the xDS API for Envoy and gRPC; "off" disables it."""
    tls: TLSFiles | None = None
    users: dict[str, str] = {}
    """Names and passwords; if there are any, all calls of etcd's API require a login."""
    insecure: bool = False
    """Allow addresses other than loopback without TLS or users."""
    data: str = ""
    """The folder of the tokens, the audit and the default store; by default the user's data
    folder."""
    quota: str = ""
    """The maximum size of an embedded store, like 4GiB, or "off". Overrides the URL's quota."""
    hosts: tuple[str, ...] = ()
    """Names that the Host header may have in addition to loopback and the listener's address."""
    tenants_namespace: str = ""
    """The key prefix of the tenants; empty: `MOORING_TENANTS_NAMESPACE`, or `jxt`."""
    console: bool = True
    """Whether the HTTP server has the console and its login in addition to the API."""
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
        """The data folder of the server."""
        return expanded(self.data).absolute() if self.data else data_folder()

    def registry_url(self) -> StoreURL:
        return parse(self.registry) if self.registry else self.url()

    @property
    def has_store(self) -> bool:
        """Whether there is a store; otherwise there is only a registry on Redis."""
        return self.url().is_store

    @property
    def registry_apart(self) -> bool:
        """Whether the registry is not in the store."""
        return bool(self.registry) or not self.has_store


def load(file: Path | None, **flags: object) -> ServerSettings:
    """The settings of a file, overridden by flags. Raises `InvalidRequest`."""
    values = {} if file is None else _read(file)
    registry_section = None
    if isinstance(values.get("registry"), Mapping):
        registry_section = dict(values.pop("registry"))
        values["registry"] = registry_section.pop("url", "")
    values.update({name: value for name, value in flags.items() if value})
    known = [name for name in ServerSettings.__struct_fields__ if name != "registry_settings"]
    for name in values:
        if name not in known:
            hint = nearest(str(name), known)
            raise InvalidRequest(f"{file}: unknown setting {quoted(name)}{hint}")
    _normalize(values)
    values["alerts"] = parse_alerts(values.get("alerts"))
    values["checks"] = parse_checks(values.get("checks"))
    if registry_section is not None:
        values["registry_settings"] = parse_registry({"registry": registry_section})
    try:
        return checked(msgspec.convert(values, ServerSettings))
    except msgspec.ValidationError as error:
        raise InvalidRequest(rejection(error, str(file or message("the_settings")))) from error


def _normalize(values: dict[Any, Any]) -> None:
    """Turn the switches and numbers of YAML into the types of the settings: `off` without quotes is
    false."""
    for name in ("cleanup", "console"):
        if values.get(name) in ("on", "off"):
            values[name] = values[name] == "on"
    for name in ("http", "etcd", "xds", "quota"):
        if values.get(name) is False:
            values[name] = "off"
    if type(values.get("quota")) is int:
        values["quota"] = str(values["quota"])


def _read(file: Path) -> dict[Any, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not valid UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(f"{file} is not valid YAML: {yaml_in_words(error)}") from error
    if not isinstance(values, dict):
        raise InvalidRequest(f"{file} must contain settings like `http: {HTTP}`")
    return values


def checked(settings: ServerSettings) -> ServerSettings:
    """The settings with their defaults filled in. Raises `InvalidRequest` if they are invalid."""
    embedded = settings.url().scheme in EMBEDDED
    settings.registry_url()  # raises if it is invalid
    TenantKeys(settings.tenants_namespace or None)  # raises if it is invalid
    _check_store(settings, embedded=embedded)
    etcd = settings.etcd or (ETCD if embedded else "off")
    if etcd != "off" and (namespace := settings.url().options.get("namespace")):
        raise InvalidRequest(
            f"namespace={namespace} in the URL of the store: etcd's API serves the whole store, "
            "not a prefix. Remove it, or disable that API (--etcd off)"
        )
    _check_addresses(settings, etcd)
    _check_http(settings)
    _check_connections(settings.connections)
    url = settings.url()
    if url.scheme == "memory" and not url.location:
        # All listeners serve one store: without a name, each would open a store of its own.
        url = dataclasses.replace(url, location="served")
        settings = msgspec.structs.replace(settings, store=str(url))
    return msgspec.structs.replace(settings, etcd=etcd)


def _check_http(settings: ServerSettings) -> None:
    if settings.checks.enabled and settings.http == "off":
        raise InvalidRequest(
            "checks.enabled: with --http off, nothing shows the results. Give --http an address"
        )
    for host in settings.hosts:
        place = parse_host(host)
        if place is None or place.port is not None:
            raise InvalidRequest(f"hosts: {quoted(host)} is not a valid host name like mooring.lan")
    for rate in Rates.__struct_fields__:
        if getattr(settings.rates, rate) < 0:
            raise InvalidRequest(f"rates.{rate} must be 0 or more")


def _check_connections(connections: ConnectionSettings) -> None:
    if connections.per_address < 0:
        raise InvalidRequest("connections.per_address must be 0 (no limit) or more")
    for network in connections.exempt:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            raise InvalidRequest(
                f"connections.exempt: {network} is not an address or network like 192.0.2.7 or "
                "10.0.0.0/8"
            ) from error


def _check_store(settings: ServerSettings, *, embedded: bool) -> None:
    url = settings.url()
    if not url.is_store and settings.registry:
        raise no_store(url)
    if settings.quota:
        if not embedded:
            raise InvalidRequest(
                f"--quota {settings.quota}: {url} is not an embedded store (sqlite://, memory://). "
                "Set its quota there, and omit --quota"
            )
        check_quota(settings.quota)
    if settings.etcd in (None, "", "off"):
        return
    if not url.is_store:
        raise InvalidRequest(
            f"--etcd {settings.etcd}: {url} contains only a registry and has no keys for etcd's "
            "API to serve. Omit --etcd, or name an embedded store with --store and this one with "
            "--registry"
        )
    if not embedded:
        raise InvalidRequest(
            f"--etcd {settings.etcd}: Mooring serves etcd's API only for an embedded store "
            f"(sqlite://, memory://), not for {url}. Omit --etcd"
        )


def _check_addresses(settings: ServerSettings, etcd: str) -> None:
    for flag, address in (("--http", settings.http), ("--etcd", etcd), ("--xds", settings.xds)):
        if address == "off":
            continue
        host, _ = split_address(flag, address)
        # Only etcd's API has users.
        safe = settings.tls is not None and (flag != "--etcd" or bool(settings.users))
        if not is_loopback(host) and not safe and not settings.insecure:
            raise InvalidRequest(
                f"{flag} {address} is reachable from other machines: that requires TLS"
                f"{' and users' if flag == '--etcd' else ''} in the --config file, or --insecure"
            )


def split_address(flag: str, address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535 or not host:
        raise InvalidRequest(f"{flag} {address}: expected an address like 127.0.0.1:2379")
    return host.strip("[]"), int(port)
