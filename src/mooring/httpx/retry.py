"""One request on its way: what is sent, what counts as a failure, and whether to try elsewhere."""

from __future__ import annotations

from urllib.parse import unquote

import httpx

from mooring.httpx.streams import RequestBody
from mooring.model import Instance

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
FAILED = frozenset({502, 503, 504})


class Refused(Exception):
    """An answer that stands for a failure: 502, 503 or 504."""


def refusal(response: httpx.Response) -> Refused | None:
    """What an answer stands for, where that is a failure."""
    if response.status_code not in FAILED:
        return None
    return Refused(f"{response.status_code} {response.reason_phrase}")


def blames(error: BaseException) -> bool:
    """Whether an error is the instance's fault, and not this client's own."""
    own = (httpx.PoolTimeout, httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.ProxyError)
    return isinstance(error, httpx.TransportError | Refused) and not isinstance(error, own)


class Tries:
    """One request on its way to one instance after another: what may still be done with it."""

    def __init__(self, request: httpx.Request, retries: int) -> None:
        self.request = request
        self.service = unquote(request.url.host)
        self.key: str | bytes | None = request.extensions.get("mooring_key")
        self._left = retries
        self._stream = RequestBody(request.stream)
        self._sent: httpx.URL | None = None

    def sent(self, instance: Instance) -> httpx.Request:
        """The request as it goes to an instance."""
        asked = self.request
        scheme = asked.url.scheme.partition("+")[0]
        port = instance.port_for("http")
        where = asked.url.copy_with(
            scheme=scheme,
            host=instance.host,
            port=instance.ports.get("https", port) if scheme == "https" else port,
        )
        self._sent = where
        headers = asked.headers.copy()
        if headers.get("Host", "") == asked.url.netloc.decode("ascii"):
            headers["Host"] = where.netloc.decode("ascii")
        return httpx.Request(
            asked.method, where, headers=headers, stream=self._stream, extensions=asked.extensions
        )

    def received(self, response: httpx.Response) -> httpx.Response:
        """The response as the caller gets it: a redirection to the instance is one to the service.

        Relative ones too, since nobody else knows how to join our schemes.
        """
        if response.has_redirect_location and self._sent is not None:
            there = self._sent.join(response.headers["location"])
            if (there.scheme, there.netloc) == (self._sent.scheme, self._sent.netloc):
                here = self.request.url.copy_with(
                    raw_path=there.raw_path, fragment=there.fragment or None
                )
                response.headers["location"] = str(here)
        return response

    def may_go_on(self, failure: BaseException | None) -> bool:
        """Whether to try another instance after this failure; one that is allowed is counted."""
        if failure is None or not blames(failure) or not self._left or not self._stream.whole:
            return False
        unsent = isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
        if not unsent and self.request.method not in REPEATABLE:
            return False
        self._left -= 1
        return True
