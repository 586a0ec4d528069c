"""The settings below `registry:` in YAML, with environment variables applied."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mooring.errors import InvalidRequest
from mooring.formatting import quoted, yaml_in_words
from mooring.settings import loader as configuration
from mooring.settings.loader import Seconds

Kind = Literal["absolute", "percentage", "any"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A change of more than `threshold` is significant; under `any`, every difference is.

    A percentage is of the old value; from 0 any other value is significant. What is no number
    (a text, a boolean) is compared by equality whatever the type.
    """

    threshold: float
    type: Kind

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InvalidRequest(f"a threshold of {self.threshold} makes no sense: give 0 or more")


THRESHOLDS: Mapping[str, Threshold] = {
    "memory.usagePercent": Threshold(10.0, "absolute"),
    "cpu.processCpuLoad": Threshold(20.0, "absolute"),
    "healthy": Threshold(0.0, "any"),
}
"""What is watched unless something else is said."""


def canonical(path: str) -> str:
    """The one spelling of a path: `health` and `healthy` are the same."""
    head, dot, rest = path.partition(".")
    return f"healthy{dot}{rest}" if head == "health" else path


@dataclass(frozen=True, slots=True)
class Policy:
    """How often to send, in seconds, and what is worth sending sooner."""

    heartbeat_interval: float = 10.0
    metadata_interval: float = 60.0
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: THRESHOLDS)
    immediate: bool = True
    """Send a significant change at once; otherwise it goes with the next beat."""
    jitter: float = 0.2
    """A send may come early by up to this share of its interval, never late: processes that started
    in the same moment must not send in the same moment for ever."""

    def __post_init__(self) -> None:
        if not (self.heartbeat_interval > 0 and self.metadata_interval > 0):
            raise InvalidRequest(
                f"intervals of {self.heartbeat_interval} s and {self.metadata_interval} s make no "
                "sense: both must be above 0"
            )
        if not 0 <= self.jitter < 1:
            raise InvalidRequest(f"a jitter of {self.jitter} is not a share from 0 to below 1")

    @property
    def longest_retry(self) -> float:
        """The bound of the pauses between tries while the registry is away, in seconds. An instance
        is back within one heartbeat: half of it is for the try itself."""
        return min(max(self.heartbeat_interval / 2, 1.0), 10.0)


log = logging.getLogger(__name__)

RENAMED = {
    "heartbeat.interval": "heartbeat.heartbeat-interval",
    "cleanup.timeout": "cleanup.global-timeout",
}
"""An old name, and what the setting is called now. An old name works, with a warning."""

_NOT_IN_KEYS = re.compile(r"[\s{}\x00-\x1f\x7f]")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One section, with the document's names for its fields."""


class HeartbeatSettings(_Section, frozen=True):
    heartbeat_interval: Seconds = 10.0
    metadata_interval: Seconds = 60.0
    """Between updates of the metrics; each is a heartbeat, too."""
    change_thresholds: dict[str, Threshold] = {}
    """As told here; `RegistrySettings.thresholds` are those that hold."""


class MetricsSettings(_Section, frozen=True):
    enabled_metrics: tuple[str, ...] = ("memory", "cpu", "application", "disk")
    collection_intervals: dict[str, Seconds] = {}
    """As told here; a collector that is not named has its own."""
    change_thresholds: dict[str, Threshold] = {}
    """As told here; `RegistrySettings.thresholds` are those that hold."""
    immediate_update_on_significant_change: bool = True
    collection_timeout: Seconds = 5.0


class CleanupSettings(_Section, frozen=True):
    interval: Seconds = 30.0
    global_timeout: Seconds = 120.0
    """An instance without a heartbeat for so long is removed."""
    brake_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Removal pauses where more than this share of a service would expire at once…"""
    brake_least: Annotated[int, msgspec.Meta(ge=1)] = 3
    """…and at least so many instances…"""
    brake_release: Seconds = 600.0
    """…for at most so long."""


class RedisSettings(_Section, frozen=True):
    key_prefix: Annotated[str, msgspec.Meta(min_length=1)] = "registry"
    namespace: str = ""
    connection_timeout: Seconds = 3.0
    consumer_timeout: Seconds | None = None
    """Consumers leave out who gave no sign of life for so long; by default as long as
    `cleanup.global-timeout`, so that the brake can hold before they do."""
    metadata_limit: Annotated[int, msgspec.Meta(ge=1)] = 65536
    """Bytes of metadata and metrics that an instance may have."""


class RegistrySettings(_Section, frozen=True):
    """Everything below `registry:`."""

    heartbeat: HeartbeatSettings = HeartbeatSettings()
    metrics: MetricsSettings = MetricsSettings()
    cleanup: CleanupSettings = CleanupSettings()
    redis: RedisSettings = RedisSettings()

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """Those that hold: both blocks over the defaults; the one under `heartbeat` wins."""
        told = (self.metrics.change_thresholds, self.heartbeat.change_thresholds)
        return dict(THRESHOLDS) | _canonical(told[0]) | _canonical(told[1])

    @property
    def policy(self) -> Policy:
        """When to beat, as these settings say."""
        return Policy(
            heartbeat_interval=self.heartbeat.heartbeat_interval,
            metadata_interval=self.heartbeat.metadata_interval,
            thresholds=self.thresholds,
            immediate=self.metrics.immediate_update_on_significant_change,
        )


def load(source: str | Path, environ: Mapping[str, str] | None = None) -> RegistrySettings:
    """The settings of a file (a `Path`) or of YAML text (a `str`), as `parse` reads them."""
    import yaml  # slow to load, and most processes read no file

    where = str(source) if isinstance(source, Path) else "the YAML"
    try:
        document = yaml.safe_load(
            source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        )
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(f"{where} is no YAML: {yaml_in_words(error)}") from error
    if not isinstance(document, Mapping | None):
        raise InvalidRequest(f"{where} must hold settings below `registry:`")
    return parse(document or {}, environ)


def parse(
    document: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> RegistrySettings:
    """The settings of a mapping whose one key is `registry`, under the environment's.

    `environ` is the process's own by default. Raises `InvalidRequest`, naming the setting by its
    dotted path, for anything that is unknown, of a wrong kind or makes no sense.
    """
    configuration.check_names("", document, ["registry"])
    told = configuration.renamed("registry", document.get("registry"), RENAMED)
    environ = os.environ if environ is None else environ
    configuration.overlay(
        told, configuration.from_environment("registry", RegistrySettings, environ, RENAMED)
    )
    settings = configuration.convert("registry", told, RegistrySettings)
    return _checked(settings)


def _canonical(thresholds: Mapping[str, Threshold]) -> dict[str, Threshold]:
    return {canonical(path): threshold for path, threshold in thresholds.items()}


def _checked(settings: RegistrySettings) -> RegistrySettings:
    """The same settings, whole. A doubt that has an answer is logged, one without is an error."""
    if settings.cleanup.global_timeout <= settings.heartbeat.heartbeat_interval:
        raise InvalidRequest(
            "registry.cleanup.global-timeout must be longer than "
            "registry.heartbeat.heartbeat-interval, or live instances are removed between two beats"
        )
    for name, part in msgspec.to_builtins(settings.redis).items():
        if isinstance(part, str) and _NOT_IN_KEYS.search(part):
            raise InvalidRequest(
                f"registry.redis.{name}: {quoted(part)} cannot be in a key: no spaces, no control "
                "characters, and no braces, which would choose a slot on a cluster"
            )
    mine = _canonical(settings.heartbeat.change_thresholds)
    for path, other in _canonical(settings.metrics.change_thresholds).items():
        if mine.get(path, other) != other:
            log.warning(
                "registry.heartbeat.change-thresholds and registry.metrics.change-thresholds "
                "differ for %s: the one under heartbeat is taken",
                path,
            )
    return settings
