"""Mooring's own Prometheus metrics, in the default registry of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Protocol, get_args
from weakref import WeakValueDictionary

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily, StateSetMetricFamily
from prometheus_client.registry import Collector

from mooring.model import RegistrationState


class HasState(Protocol):
    @property
    def state(self) -> RegistrationState: ...


class Registrations(Collector):
    """The registrations of this process. Reading states at a scrape costs less than gauges."""

    def __init__(self) -> None:
        self._shown: WeakValueDictionary[tuple[str, str], HasState] = WeakValueDictionary()

    def show(self, service: str, instance: str, registration: HasState) -> None:
        self._shown[service, instance] = registration

    def hide(self, service: str, instance: str, registration: HasState) -> None:
        if self._shown.get((service, instance)) is registration:
            del self._shown[service, instance]

    def collect(self) -> Iterator[StateSetMetricFamily]:
        states = get_args(RegistrationState)
        family = StateSetMetricFamily(
            "mooring_registration",
            "State of a registration of this process",
            labels=["service", "instance"],
        )
        for shown in self._shown.valuerefs():  # a copy, since this may run in another thread
            if (registration := shown()) is not None:
                state = registration.state
                family.add_metric(shown.key, {name: name == state for name in states})
        yield family


REGISTRATIONS = Registrations()
REGISTRY.register(REGISTRATIONS)

REPAIRS = Counter(
    "mooring_registration_repairs",
    "Number of repairs of a registration",
    ["service", "instance"],
)


class HasRotation(Protocol):
    service: str

    @property
    def rotation(self) -> Sized: ...
    @property
    def stale(self) -> bool: ...


class Views(Collector):
    """The open views of this process. Of a service, the longest list counts, and any stale one."""

    def __init__(self) -> None:
        self._shown: WeakValueDictionary[int, HasRotation] = WeakValueDictionary()

    def show(self, view: HasRotation) -> None:
        self._shown[id(view)] = view

    def hide(self, view: HasRotation) -> None:
        self._shown.pop(id(view), None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts: dict[str, int] = {}
        stale: dict[str, int] = {}
        for shown in self._shown.valuerefs():  # a copy, since this may run in another thread
            if (view := shown()) is not None:
                name = view.service
                counts[name] = max(counts.get(name, 0), len(view.rotation))
                stale[name] = max(stale.get(name, 0), int(view.stale))
        yield _gauges("mooring_view_instances", "Instances of a service in this process", counts)
        yield _gauges("mooring_view_stale", "1 if the list of a service may be stale", stale)


def _gauges(name: str, documentation: str, by_service: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=["service"])
    for service, value in by_service.items():
        family.add_metric([service], value)
    return family


VIEWS = Views()
REGISTRY.register(VIEWS)
