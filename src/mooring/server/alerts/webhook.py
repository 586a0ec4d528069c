"""Telling a webhook: one POST of JSON, over verified TLS where the URL says https."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.parse
from pathlib import Path

import msgspec

from mooring import __version__
from mooring.heartbeat.scheduler import in_thread
from mooring.model import Time
from mooring.server.alerts.dedup import Notice
from mooring.server.alerts.problems import Problem
from mooring.server.alerts.settings import AlertSettings
from mooring.server.http.response import encode, shown


class NotTold(Exception):
    """The webhook did not take it; the message says why, without what may be secret."""


class Told(msgspec.Struct, frozen=True):
    """The body of the POST. A problem that is told again, by another server or after a restart, has
    the same `key`."""

    source: str
    """The machine whose server tells."""
    time: str
    firing: tuple[Problem, ...]
    resolved: tuple[Problem, ...]
    """As they were told."""


class Webhook:
    """Where people are told. A redirect is not followed: it would take the token elsewhere."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._url = urllib.parse.urlsplit(settings.webhook)
        self._tls = (
            ssl.create_default_context(cafile=settings.ca or None)
            if self._url.scheme == "https"
            else None
        )

    async def tell(self, notice: Notice, time: Time) -> None:
        """Raises `NotTold`."""
        body = encode(Told(socket.gethostname(), shown(time) or "", notice.firing, notice.resolved))
        # A thread of its own: names are looked up in it, and the loop waits for none of that.
        outcome = await in_thread(lambda: self._post(body), name="mooring webhook")
        if isinstance(outcome, BaseException):
            raise NotTold(self._why(outcome)) from outcome

    def _post(self, body: bytes) -> None:
        host, timeout = self._url.hostname or "", self._settings.timeout
        connection = (
            http.client.HTTPSConnection(host, self._url.port, timeout=timeout, context=self._tls)
            if self._tls is not None
            else http.client.HTTPConnection(host, self._url.port, timeout=timeout)
        )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"mooring/{__version__}",
            "Connection": "close",
        }
        if self._settings.token_file:
            token = Path(self._settings.token_file).read_text(encoding="utf-8").strip()
            headers["Authorization"] = f"Bearer {token}"
        path = urllib.parse.urlunsplit(("", "", self._url.path or "/", self._url.query, ""))
        try:
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise NotTold(f"it answered {status}")

    def _why(self, error: BaseException) -> str:
        match error:
            case NotTold():
                return str(error)
            case TimeoutError():
                return f"no answer within {self._settings.timeout:g} s"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted: {error.verify_message}"
            case OSError():
                return error.strerror or "it cannot be reached"
            case _:  # not in its own words: those of a bad header quote the token
                return "it cannot be told: check the webhook's URL and token"
