"""Mooring's own metrics, for Prometheus. They are kept in the process; whoever exposes the default
registry of `prometheus_client` exposes them too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Protocol, get_args
from weakref import WeakValueDictionary

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily, StateSetMetricFamily
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


class Viewed(Protocol):
    service: str

    @property
    def rotation(self) -> Sized: ...
    @property
    def stale(self) -> bool: ...


class Views(Collector):
    """The views that are open in this process, looked at when somebody asks. Of several views of
    one service the longest list counts, and whether any may be old."""

    def __init__(self) -> None:
        self._shown: WeakValueDictionary[int, Viewed] = WeakValueDictionary()

    def show(self, view: Viewed) -> None:
        self._shown[id(view)] = view

    def hide(self, view: Viewed) -> None:
        self._shown.pop(id(view), None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts: dict[str, int] = {}
        stale: dict[str, int] = {}
        for shown in self._shown.valuerefs():  # a list: this may be another thread
            if (view := shown()) is not None:
                name = view.service
                counts[name] = max(counts.get(name, 0), len(view.rotation))
                stale[name] = max(stale.get(name, 0), int(view.stale))
        yield _gauges("mooring_view_instances", "Instances of a service as seen here", counts)
        yield _gauges("mooring_view_stale", "1 where a service's instances may be old", stale)


def _gauges(name: str, told: str, by_service: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, told, labels=["service"])
    for service, value in by_service.items():
        family.add_metric([service], value)
    return family


VIEWS = Views()
REGISTRY.register(VIEWS)
