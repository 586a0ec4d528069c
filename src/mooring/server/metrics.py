"""The server's own metrics, for Prometheus: of its HTTP face and of its alerts."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

REQUESTS = Counter(
    "mooring_http_requests",
    "Requests that were answered",
    ["method", "route", "status"],
)
"""By the route's template, never by its path: that would be one for each instance."""

LATENCY = Histogram(
    "mooring_http_request_duration_seconds",
    "From a request's head to its answer's",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

RESETS = Counter("mooring_sse_resets", "Words of the stream that say: read everything anew")

NOTICES = Counter("mooring_alert_notices", "What was told to the webhook", ["outcome"])
"""`sent` or `failed`."""

NOWHERE = "none"
"""The route of a request that means nothing here."""


def answered(method: str, route: str, status: int, seconds: float) -> None:
    """A request was answered."""
    known = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
    REQUESTS.labels(known, route or NOWHERE, str(status)).inc()
    LATENCY.labels(route or NOWHERE).observe(seconds)
