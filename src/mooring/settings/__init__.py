"""The settings of a registry, from YAML, environment variables or Python.

`load` and `parse` create the `RegistrySettings` that `mooring.connect` takes. The settings of
`mooring serve` are in `mooring.server.settings`.
"""

from mooring.settings.registry import (
    CleanupSettings,
    HeartbeatSettings,
    MetricsSettings,
    Policy,
    RedisSettings,
    RegistrySettings,
    Threshold,
    load,
    parse,
)

__all__ = [
    "CleanupSettings",
    "HeartbeatSettings",
    "MetricsSettings",
    "Policy",
    "RedisSettings",
    "RegistrySettings",
    "Threshold",
    "load",
    "parse",
]
