"""Balanced HTTP: transports for httpx, for which the host of a URL is a service.

    transport = mooring.httpx.AsyncTransport(hub)
    async with httpx.AsyncClient(mounts={"http+mooring://": transport}) as client:
        await client.get(mooring.httpx.url("Common/VerifyCodeService", "/codes"))

**Names.** httpx writes hosts in small letters, and a group's slash is `%2F` in one: the URL above
is `http+mooring://common%2Fverifycodeservice/codes`. A service of exactly that name is taken; where
there is none, the only one that differs in its capitals alone. Names that are given as `services`
need no such look at the registry, nor does a start without it.

**Ports.** `http+mooring://` goes to the instance's port `http`, `https+mooring://` to `https` or
`http`; without them to its main port. The `Host` header is the instance's address, unless the
request brings one of its own, and a redirection to that address is made one to the service.

**Retries** go to another instance: always where no connection came about; otherwise only for
methods that may be repeated (GET, HEAD, OPTIONS, PUT, DELETE, TRACE), after an error on the way or
502, 503, 504; never once a streamed body was begun; and within the view's retry budget. Where
there is nobody else to ask, the caller gets the first answer or error.

**Feedback.** A call is under way until its response is closed; its latency is the time to the head
of the response, so that a long stream makes no instance look slow. The errors above, and those
statuses, count against the instance. The one that answered is in
`response.extensions["mooring_instance"]`; `extensions={"mooring_key": …}` of a request is the key
for consistent hashing.
"""

from __future__ import annotations

import importlib.util

from mooring.errors import MissingExtra

if importlib.util.find_spec("httpx") is None:
    raise MissingExtra("mooring.httpx", "httpx")

from mooring.httpx.balancer import Discovery
from mooring.httpx.transports import LIMITS, RETRIES, AsyncTransport, Transport, url

__all__ = ["LIMITS", "RETRIES", "AsyncTransport", "Discovery", "Transport", "url"]
