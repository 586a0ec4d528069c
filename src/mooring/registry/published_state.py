"""What an instance publishes: its fields, its health and its metrics."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import cast

import msgspec

from mooring.errors import InvalidRequest
from mooring.heartbeat.collectors import Collecting
from mooring.messages import message
from mooring.model import JSON, Instance, State, Status, check_json, now
from mooring.registry.contract import Registrar

log = logging.getLogger(__name__)


class PublishedState:
    """The record of one instance as it should be in the registry."""

    def __init__(self, registrar: Registrar, instance: Instance, collected: Collecting) -> None:
        self.instance, self._lost_fields = registrar.prepare(instance)
        self.state: State = "up"
        self.healthy = True
        self.changed = False
        """Whether anything but the metrics changed since the last update was sent."""
        self._registrar, self._collected = registrar, collected
        self._own_metrics: dict[str, JSON] = {}
        self._merged: dict[str, JSON] | None = None
        self._registered_at = now()

    def update(
        self,
        *,
        healthy: bool | None,
        metrics: Mapping[str, JSON] | None,
        fields: Mapping[str, object],
    ) -> None:
        """Raises `InvalidRequest` for an invalid value, and changes nothing then."""
        _check_status(self.instance.service, healthy, metrics)
        changed = {name: value for name, value in fields.items() if value is not None}
        if changed:
            after = msgspec.structs.replace(self.instance, **changed)
            self.instance, lost = self._registrar.prepare(after)
            self.changed = True
            self._log_lost(lost)
        if healthy is not None and healthy != self.healthy:
            self.healthy, self.changed = healthy, True
        if metrics is not None:
            self._own_metrics, self._merged = copy.deepcopy(dict(metrics)), None
        if not self._registrar.guarantees.describes and (metrics or not self.healthy):
            self._log_lost(["status"])

    def log_lost_fields(self) -> None:
        """Log which fields the registry cannot store."""
        lost, self._lost_fields = self._lost_fields, []
        self._log_lost(lost)

    def _log_lost(self, fields: list[str]) -> None:
        """Log each field once."""
        if new := [field for field in fields if field not in self._lost_fields]:
            self._lost_fields += new
            log.warning(
                "%s %s: the registry cannot store its %s",
                self.instance.service,
                self.instance.id,
                ", ".join(new),
            )

    def metrics_changed(self) -> None:
        self._merged = None

    @property
    def metrics(self) -> dict[str, JSON]:
        if self._merged is None:
            collected = cast("Mapping[str, JSON]", self._collected.metrics)
            self._merged = {**collected, **self._own_metrics}
        return self._merged

    def as_of_now(self) -> Instance:
        """The instance with its current status."""
        status = Status(
            state=self.state,
            healthy=self.healthy,
            registered_at=self._registered_at,
            updated_at=now(),
            metrics=self.metrics,
        )
        record = copy.copy(self.instance)
        # The instance was validated when it was created: `replace` would validate it again.
        msgspec.structs.force_setattr(record, "status", status)
        return record


def _check_status(service: str, healthy: object, metrics: object) -> None:
    if healthy is not None and not isinstance(healthy, bool):
        raise InvalidRequest(message("healthy_not_boolean", value=healthy))
    if metrics is not None:
        if not isinstance(metrics, Mapping):
            raise InvalidRequest(message("metrics_not_a_map", value=metrics))
        check_json(message("what_metrics", service=service), metrics, finite=False)
