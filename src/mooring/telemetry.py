"""Mooring's own metrics, for Prometheus. They are kept in the process; whoever exposes the default
registry of `prometheus_client` exposes them too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, get_args
from weakref import WeakValueDictionary

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import StateSetMetricFamily
from prometheus_client.registry import Collector

from mooring.model import RegistrationState


class Stated(Protocol):
    @property
    def state(self) -> RegistrationState: ...


class Registrations(Collector):
    """The registrations of this process. Their states are looked at when somebody asks for them:
    to keep a metric for each would cost more than to register."""

    def __init__(self) -> None:
        self._shown: WeakValueDictionary[tuple[str, str], Stated] = WeakValueDictionary()

    def show(self, service: str, instance: str, registration: Stated) -> None:
        self._shown[service, instance] = registration

    def hide(self, service: str, instance: str, registration: Stated) -> None:
        if self._shown.get((service, instance)) is registration:
            del self._shown[service, instance]

    def collect(self) -> Iterator[StateSetMetricFamily]:
        states = get_args(RegistrationState)
        family = StateSetMetricFamily(
            "mooring_registration",
            "State of a registration of this process",
            labels=["service", "instance"],
        )
        for shown in self._shown.valuerefs():  # a list: this may be another thread
            if (registration := shown()) is not None:
                state = registration.state
                family.add_metric(shown.key, {each: each == state for each in states})
        yield family


REGISTRATIONS = Registrations()
REGISTRY.register(REGISTRATIONS)

REPAIRS = Counter(
    "mooring_registration_repairs",
    "How often a registration had to be put right",
    ["service", "instance"],
)

VIEW_INSTANCES = Gauge("mooring_view_instances", "Instances of a service as seen here", ["service"])

VIEW_STALE = Gauge("mooring_view_stale", "1 where a service's instances may be old", ["service"])
