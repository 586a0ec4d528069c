"""What the control plane counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

STREAMS = Gauge("mooring_xds_streams", "Clients of xDS that are connected")

RESPONSES = Counter("mooring_xds_responses", "Responses that were sent", ["type"])

REFUSED = Counter("mooring_xds_refused", "Responses that a client refused (NACK)", ["type"])
