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
from mooring.settings import loader
from mooring.settings.loader import Seconds

ThresholdKind = Literal["absolute", "percentage", "any"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A change of more than `threshold` is significant; with the type `any`, every change is.

    A percentage refers to the old value; from 0, every change is significant. Values that are not
    numbers (texts, booleans) are compared for equality, whatever the type.
    """

    threshold: float
    type: ThresholdKind

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InvalidRequest(f"a threshold must be 0 or more, not {self.threshold}")


THRESHOLDS: Mapping[str, Threshold] = {
    "memory.usagePercent": Threshold(10.0, "absolute"),
    "cpu.processCpuLoad": Threshold(20.0, "absolute"),
    "healthy": Threshold(0.0, "any"),
}
"""The default thresholds."""


def canonical(path: str) -> str:
    """The canonical spelling of a path: `health` means `healthy`."""
    head, dot, rest = path.partition(".")
    return f"healthy{dot}{rest}" if head == "health" else path


@dataclass(frozen=True, slots=True)
class Policy:
    """How often to send heartbeats and metrics, in seconds, and which changes to send earlier."""

    heartbeat_interval: float = 10.0
    metadata_interval: float = 60.0
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: THRESHOLDS)
    immediate: bool = True
    """Whether to send a significant change at once, instead of with the next heartbeat."""
    jitter: float = 0.2
    """The share of its interval by which a send may be early; it is never late. It spreads the
    sends of processes that started at the same time."""

    def __post_init__(self) -> None:
        if not (self.heartbeat_interval > 0 and self.metadata_interval > 0):
            raise InvalidRequest(
                f"both intervals must be above 0, not {self.heartbeat_interval} s and "
                f"{self.metadata_interval} s"
            )
        if not 0 <= self.jitter < 1:
            raise InvalidRequest(f"jitter must be at least 0 and below 1, not {self.jitter}")

    @property
    def longest_retry(self) -> float:
        """The longest pause between retries while the registry is unavailable, in seconds. An
        instance is back within one heartbeat interval: the other half is for the attempt itself."""
        return min(max(self.heartbeat_interval / 2, 1.0), 10.0)


log = logging.getLogger(__name__)

RENAMED = {
    "heartbeat.interval": "heartbeat.heartbeat-interval",
    "cleanup.timeout": "cleanup.global-timeout",
}
"""Old names of settings and their current names. An old name works, with a warning."""

_NOT_IN_KEYS = re.compile(r"[\s{}\x00-\x1f\x7f]")


class _SettingsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A section. Its settings are written in kebab case."""


class HeartbeatSettings(_SettingsSection, frozen=True):
    """The section `heartbeat`: when heartbeats and metrics are sent."""

    heartbeat_interval: Seconds = 10.0
    """The time between heartbeats."""
    metadata_interval: Seconds = 60.0
    """The time between updates of the metrics. An update is a heartbeat, too."""
    change_thresholds: dict[str, Threshold] = {}
    """Changes of metrics that are sent early. Takes precedence over `metrics.change-thresholds`."""


class MetricsSettings(_SettingsSection, frozen=True):
    """The section `metrics`: which metrics are collected, and how often."""

    enabled_metrics: tuple[str, ...] = ("memory", "cpu", "application", "disk")
    """The collectors that run."""
    collection_intervals: dict[str, Seconds] = {}
    """The time between collections, by collector. Others use their default interval."""
    change_thresholds: dict[str, Threshold] = {}
    """Changes of metrics that are sent early, in addition to the default thresholds."""
    immediate_update_on_significant_change: bool = True
    """Whether to send a significant change at once, instead of with the next heartbeat."""
    collection_timeout: Seconds = 5.0
    """The timeout of one collection."""


class CleanupSettings(_SettingsSection, frozen=True):
    """The section `cleanup`: when instances on Redis are evicted, and the limits of the brake."""

    interval: Seconds = 30.0
    """The time between passes."""
    global_timeout: Seconds = 120.0
    """An instance is evicted after this time without a heartbeat."""
    brake_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """The brake pauses evictions if more than this share of a service would be evicted at once."""
    brake_least: Annotated[int, msgspec.Meta(ge=1)] = 3
    """The brake does not engage for fewer instances than this."""
    brake_release: Seconds = 600.0
    """The brake pauses evictions for at most this time."""


class RedisSettings(_SettingsSection, frozen=True):
    """The section `redis`: keys and timeouts of a registry on Redis."""

    key_prefix: Annotated[str, msgspec.Meta(min_length=1)] = "registry"
    """The prefix of all keys."""
    namespace: str = ""
    """A further prefix, in front of `key-prefix`; empty: none."""
    connection_timeout: Seconds = 3.0
    """The time until a call fails, including its retries."""
    consumer_timeout: Seconds | None = None
    """Consumers drop an instance after this time without a heartbeat. The default is
    `cleanup.global-timeout`, so that the brake can engage first."""
    metadata_limit: Annotated[int, msgspec.Meta(ge=1)] = 65536
    """The maximum size of an instance's metadata and metrics, in bytes."""


class RegistrySettings(_SettingsSection, frozen=True):
    """The section `registry`: all settings of registrations and of a registry on Redis."""

    heartbeat: HeartbeatSettings = HeartbeatSettings()
    metrics: MetricsSettings = MetricsSettings()
    cleanup: CleanupSettings = CleanupSettings()
    redis: RedisSettings = RedisSettings()

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """The effective thresholds. The section `heartbeat` takes precedence over `metrics`, and
        both over the defaults."""
        return {
            **THRESHOLDS,
            **_canonical(self.metrics.change_thresholds),
            **_canonical(self.heartbeat.change_thresholds),
        }

    @property
    def policy(self) -> Policy:
        """The intervals and thresholds of heartbeats."""
        return Policy(
            heartbeat_interval=self.heartbeat.heartbeat_interval,
            metadata_interval=self.heartbeat.metadata_interval,
            thresholds=self.thresholds,
            immediate=self.metrics.immediate_update_on_significant_change,
        )


def load(source: str | Path, environ: Mapping[str, str] | None = None) -> RegistrySettings:
    """Parse the settings in a file (a `Path`) or in YAML text (a `str`). See `parse`."""
    import yaml  # slow to load, and most processes read no file

    name = str(source) if isinstance(source, Path) else "the text"
    try:
        document = yaml.safe_load(
            source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        )
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(f"{name} is not valid YAML: {yaml_in_words(error)}") from error
    if not isinstance(document, Mapping | None):
        raise InvalidRequest(f"{name} must hold settings below `registry:`")
    return parse(document or {}, environ)


def parse(
    document: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> RegistrySettings:
    """The settings of a mapping with the single key `registry`. Environment variables override
    them.

    `environ` is the environment of the process by default. Raises `InvalidRequest`, with the dotted
    path of the setting, for unknown settings and invalid values.
    """
    loader.check_names("", document, ["registry"])
    tree = loader.renamed("registry", document.get("registry"), RENAMED)
    environ = os.environ if environ is None else environ
    overrides = loader.from_environment("registry", RegistrySettings, environ, RENAMED)
    loader.overlay(tree, overrides)
    settings = loader.convert("registry", tree, RegistrySettings)
    _check(settings)
    return settings


def _canonical(thresholds: Mapping[str, Threshold]) -> dict[str, Threshold]:
    return {canonical(path): threshold for path, threshold in thresholds.items()}


def _check(settings: RegistrySettings) -> None:
    """Check settings against each other."""
    if settings.cleanup.global_timeout <= settings.heartbeat.heartbeat_interval:
        raise InvalidRequest(
            "registry.cleanup.global-timeout must be longer than "
            "registry.heartbeat.heartbeat-interval, or live instances expire between two heartbeats"
        )
    for name, part in msgspec.to_builtins(settings.redis).items():
        if isinstance(part, str) and _NOT_IN_KEYS.search(part):
            raise InvalidRequest(
                f"registry.redis.{name}: {quoted(part)} must not contain spaces, control "
                "characters, or braces, which would choose a slot on a cluster"
            )
    preferred = _canonical(settings.heartbeat.change_thresholds)
    for path, threshold in _canonical(settings.metrics.change_thresholds).items():
        if preferred.get(path, threshold) != threshold:
            log.warning(
                "registry.heartbeat.change-thresholds and registry.metrics.change-thresholds "
                "differ for %s: the first takes precedence",
                path,
            )
