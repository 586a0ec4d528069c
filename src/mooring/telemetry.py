"""Mooring's own metrics, for Prometheus. They are kept in the process; whoever exposes the default
registry of `prometheus_client` exposes them too."""

from __future__ import annotations

from typing import get_args

from prometheus_client import Counter, Enum, Gauge

from mooring.model import RegistrationState

REGISTRATION = Enum(
    "mooring_registration",
    "State of a registration of this process",
    ["service", "instance"],
    states=list(get_args(RegistrationState)),
)

REPAIRS = Counter(
    "mooring_registration_repairs",
    "How often a registration had to be put right",
    ["service", "instance"],
)

VIEW_INSTANCES = Gauge("mooring_view_instances", "Instances of a service as seen here", ["service"])

VIEW_STALE = Gauge("mooring_view_stale", "1 where a service's instances may be old", ["service"])
