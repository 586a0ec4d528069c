"""`alerts:` in the file of `mooring serve`: what counts as wrong, and whom to tell."""

from __future__ import annotations

import ipaddress
import urllib.parse
from pathlib import Path

import msgspec

from mooring.errors import InvalidRequest
from mooring.server.alerts.problems import Patience, Severity
from mooring.settings import loader as configuration
from mooring.settings.loader import Seconds


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
    def patience(self) -> Patience:
        return Patience(self.draining, self.emptied)


def parse(told: object) -> AlertSettings:
    """The settings below `alerts:`. Raises `InvalidRequest`, naming the setting by its dotted path,
    for anything that is unknown, of a wrong kind or makes no sense."""
    return checked(configuration.convert("alerts", told, AlertSettings))


def checked(settings: AlertSettings) -> AlertSettings:
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
