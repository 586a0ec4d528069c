"""What `mooring serve` is told: flags over a file, checked whole before anything starts."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mooring.connection_limit import LOOPBACK, PER_ADDRESS, ConnectionLimit
from mooring.errors import InvalidRequest
from mooring.formatting import in_words, quoted, yaml_in_words
from mooring.hub import EMBEDDED, no_store
from mooring.names import nearest
from mooring.server.alerts.settings import AlertSettings
from mooring.server.alerts.settings import parse as parse_alerts
from mooring.server.auth.csrf import parse as parse_host
from mooring.server.auth.data_dir import data_folder, expanded
from mooring.server.auth.rate_limits import Rates
from mooring.server.health_checks.settings import CheckSettings
from mooring.server.health_checks.settings import parse as parse_checks
from mooring.settings.registry import RegistrySettings
from mooring.settings.registry import parse as parse_registry
from mooring.store.url import REDIS, StoreURL, check_quota, parse
from mooring.tenants.keys import Keys

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
    Keys(settings.tenants_namespace or None)  # raises for an empty one
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
