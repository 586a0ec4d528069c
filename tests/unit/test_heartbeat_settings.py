"""The registry's settings: the document's YAML, wrong and renamed keys, the environment. [R11]"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from mooring.errors import InvalidRequest
from mooring.settings.registry import RENAMED, THRESHOLDS, RegistrySettings, Threshold, load, parse

DOCUMENT = """\
registry:
  # 心跳配置
  heartbeat:
    heartbeat-interval: 10s
    metadata-interval: 60s
    change-thresholds:
      memory.usagePercent: { threshold: 10.0, type: "absolute" }
      cpu.processCpuLoad: { threshold: 20.0, type: "absolute" }
      health: { threshold: 0, type: "any" }

  # 指标收集配置
  metrics:
    enabled-metrics: [memory, cpu, application, disk]
    collection-intervals:
      memory: 30s
      cpu: 60s
      disk: 5m
      application: 2m
    change-thresholds:
      memory.usagePercent: { threshold: 10.0, type: "absolute" }
      cpu.processCpuLoad: { threshold: 20.0, type: "absolute" }
    immediate-update-on-significant-change: true
    collection-timeout: 5s

  # 清理配置
  cleanup:
    interval: 30s
    global-timeout: 2m

  # Redis配置
  redis:
    key-prefix: "registry"
    connection-timeout: 3s
"""
"""The whole configuration of the design document, as it stands there."""

PARTS = [
    """\
registry:
  heartbeat:
    heartbeat-interval: 10s      # 纯心跳间隔
    metadata-interval: 60s       # metadata更新间隔（包含心跳）
""",
    """\
registry:
  metrics:
    enabled-metrics:
      - memory
      - cpu
      - application
      - disk
""",
    """\
registry:
  metrics:
    change-thresholds:
      memory.usagePercent: { threshold: 10.0, type: "absolute" }
      cpu.processCpuLoad: { threshold: 20.0, type: "absolute" }
    immediate-update-on-significant-change: true
""",
]
"""Its shorter examples."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_documents_yaml_loads_as_it_stands(caplog: pytest.LogCaptureFixture):
    settings = load(DOCUMENT, {})
    assert settings.heartbeat.heartbeat_interval == 10
    assert settings.heartbeat.metadata_interval == 60
    assert settings.metrics.enabled_metrics == ("memory", "cpu", "application", "disk")
    assert settings.metrics.collection_intervals == {
        "memory": 30,
        "cpu": 60,
        "disk": 300,
        "application": 120,
    }
    assert settings.metrics.immediate_update_on_significant_change
    assert settings.metrics.collection_timeout == 5
    assert (settings.cleanup.interval, settings.cleanup.global_timeout) == (30, 120)
    assert (settings.redis.key_prefix, settings.redis.connection_timeout) == ("registry", 3)
    assert settings.thresholds == {
        "memory.usagePercent": Threshold(10.0, "absolute"),
        "cpu.processCpuLoad": Threshold(20.0, "absolute"),
        "healthy": Threshold(0.0, "any"),
    }
    assert warnings(caplog) == []


@pytest.mark.parametrize("part", PARTS)
def test_its_shorter_examples_load_too(part: str, caplog: pytest.LogCaptureFixture):
    settings = load(part, {})
    assert settings.policy == RegistrySettings().policy
    assert settings.metrics.enabled_metrics == RegistrySettings().metrics.enabled_metrics
    assert warnings(caplog) == []


@pytest.mark.parametrize("empty", ["", "registry:", "registry:\n  heartbeat:\n"])
def test_missing_settings_have_the_defaults_of_the_document(empty: str):
    assert load(empty, {}) == RegistrySettings()
    assert RegistrySettings().policy == load(DOCUMENT, {}).policy
    cleanup = RegistrySettings().cleanup
    assert (cleanup.brake_share, cleanup.brake_least, cleanup.brake_release) == (0.5, 3, 600)


def test_a_file_is_read_by_its_path(tmp_path: Path):
    file = tmp_path / "registry.yaml"
    file.write_text(DOCUMENT, encoding="utf-8")
    assert load(file, {}) == load(DOCUMENT, {})
    with pytest.raises(InvalidRequest, match=r"missing\.yaml cannot be read"):
        load(tmp_path / "missing.yaml", {})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("registri: {}", ["registri", "'registry'"]),
        ("registry: {heartbeats: {}}", ["registry.heartbeats", "'heartbeat'"]),
        (
            "registry: {heartbeat: {heartbeat_interval: 5s}}",
            ["registry.heartbeat.heartbeat_interval", "'heartbeat-interval'"],
        ),
        (
            "registry: {metrics: {enabled-metric: [cpu]}}",
            ["registry.metrics.enabled-metric", "'enabled-metrics'"],
        ),
        (
            "registry: {heartbeat: {change-thresholds: {cpu.x: {treshold: 1, type: any}}}}",
            ["registry.heartbeat.change-thresholds.cpu.x.treshold", "'threshold'"],
        ),
        ("registry: {redis: {1: 2}}", ["registry.redis.1", "key-prefix"]),
    ],
)
def test_the_error_for_an_unknown_key_names_its_path_and_the_nearest(text: str, names: list[str]):
    with pytest.raises(InvalidRequest) as caught:
        load(text, {})
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "below `registry:`"),
        ("a: [", "is not valid YAML"),
        ("registry: 5", "registry must hold settings"),
        ("registry: {heartbeat: 5}", "registry.heartbeat must hold settings"),
        ("registry: {heartbeat: {heartbeat-interval: 10}}", "heartbeat-interval: 10 .* like 10s"),
        ("registry: {heartbeat: {heartbeat-interval: 0s}}", "heartbeat-interval: 0s is too short"),
        ("registry: {heartbeat: {metadata-interval: }}", "heartbeat.metadata-interval: null"),
        (
            "registry: {metrics: {collection-intervals: {cpu: fast}}}",
            "registry.metrics.collection-intervals.cpu: 'fast' is not a duration",
        ),
        (
            "registry: {metrics: {enabled-metrics: cpu}}",
            "registry.metrics.enabled-metrics must be a list",
        ),
        (
            "registry: {metrics: {immediate-update-on-significant-change: sometimes}}",
            "registry.metrics.immediate-update-on-significant-change",
        ),
        (
            "registry: {heartbeat: {change-thresholds: {x: {threshold: 1, type: most}}}}",
            "registry.heartbeat.change-thresholds.x.type",
        ),
        (
            "registry: {heartbeat: {change-thresholds: {x: {threshold: -1, type: any}}}}",
            "registry.heartbeat.change-thresholds.x: .* 0 or more",
        ),
        ("registry: {cleanup: {brake-share: 1.5}}", "registry.cleanup.brake-share"),
        ("registry: {cleanup: {brake-least: 0}}", "registry.cleanup.brake-least"),
        ("registry: {cleanup: {global-timeout: 10s}}", "registry.cleanup.global-timeout"),
        ("registry: {redis: {key-prefix: ''}}", "registry.redis.key-prefix"),
        ("registry: {redis: {key-prefix: 'a b'}}", "registry.redis.key-prefix: .* spaces"),
        ("registry: {redis: {namespace: 'a{b}'}}", "registry.redis.namespace"),
    ],
)
def test_a_wrong_value_names_its_path(text: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        load(text, {})


def test_of_two_thresholds_the_one_under_heartbeat_wins_with_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    settings = load(
        """
registry:
  heartbeat:
    change-thresholds:
      memory.usagePercent: { threshold: 5, type: absolute }
      health: { threshold: 0, type: any }
  metrics:
    change-thresholds:
      memory.usagePercent: { threshold: 7, type: percentage }
      healthy: { threshold: 0, type: any }
      disk.usagePercent: { threshold: 1, type: absolute }
""",
        {},
    )
    assert settings.thresholds == {
        **THRESHOLDS,
        "memory.usagePercent": Threshold(5.0, "absolute"),
        "disk.usagePercent": Threshold(1.0, "absolute"),
    }
    (warning,) = warnings(caplog)
    assert "memory.usagePercent" in warning


def test_a_threshold_only_under_metrics_does_not_conflict_with_a_default(
    caplog: pytest.LogCaptureFixture,
):
    settings = load(
        "registry: {metrics: {change-thresholds: {cpu.processCpuLoad: "
        "{threshold: 5, type: percentage}}}}",
        {},
    )
    assert settings.policy.thresholds["cpu.processCpuLoad"] == Threshold(5.0, "percentage")
    assert warnings(caplog) == []


@pytest.mark.parametrize(("old", "now"), RENAMED.items())
def test_an_old_name_works_with_a_warning(old: str, now: str, caplog: pytest.LogCaptureFixture):
    (section, name), (_, name_now) = old.split("."), now.split(".")
    settings = {"registry": {section: {name: "33s"}}}
    assert parse(settings, {}) == parse({"registry": {section: {name_now: "33s"}}}, {})
    (warning,) = warnings(caplog)
    assert f"registry.{old}" in warning
    assert f"registry.{now}" in warning
    assert settings == {
        "registry": {section: {name: "33s"}}
    }  # the mapping of the caller is unchanged


def test_an_old_name_beside_the_new_one_is_an_error():
    with pytest.raises(InvalidRequest, match=r"old name of registry\.heartbeat\.heartbeat-int"):
        load("registry: {heartbeat: {interval: 5s, heartbeat-interval: 5s}}", {})


def test_variables_override_the_file():
    settings = load(
        DOCUMENT,
        {
            "MOORING_REGISTRY": "redis://elsewhere",
            "MOORING_STORE": "memory://",
            "HOME": "/root",
            "MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL": "5s",
            "MOORING_REGISTRY_METRICS_ENABLED_METRICS": "memory, cpu",
            "MOORING_REGISTRY_METRICS_IMMEDIATE_UPDATE_ON_SIGNIFICANT_CHANGE": "false",
            "MOORING_REGISTRY_METRICS_COLLECTION_INTERVALS": '{"memory": "1s"}',
            "MOORING_REGISTRY_HEARTBEAT_CHANGE_THRESHOLDS": (
                '{"cpu.systemCpuLoad": {"threshold": 3, "type": "absolute"}}'
            ),
            "MOORING_REGISTRY_CLEANUP_BRAKE_LEAST": "5",
            "MOORING_REGISTRY_CLEANUP_BRAKE_SHARE": "0.25",
            "MOORING_REGISTRY_REDIS_NAMESPACE": "shop",
        },
    )
    assert settings.heartbeat.heartbeat_interval == 5
    assert settings.heartbeat.metadata_interval == 60
    assert settings.metrics.enabled_metrics == ("memory", "cpu")
    assert not settings.policy.immediate
    assert settings.metrics.collection_intervals == {"memory": 1}
    assert settings.thresholds["cpu.systemCpuLoad"] == Threshold(3.0, "absolute")
    assert (settings.cleanup.brake_least, settings.cleanup.brake_share) == (5, 0.25)
    assert settings.redis.namespace == "shop"


def test_variables_suffice_without_a_file():
    assert parse({}, {"MOORING_REGISTRY_CLEANUP_INTERVAL": "1m"}).cleanup.interval == 60
    assert parse({}, {"MOORING_REGISTRY_METRICS_ENABLED_METRICS": ""}).metrics.enabled_metrics == ()


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOORING_REGISTRY_REDIS_KEY_PREFIX", "mine")
    assert parse({}).redis.key_prefix == "mine"
    assert load(DOCUMENT).redis.key_prefix == "mine"


def test_an_unknown_variable_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean 'MOORING_REGISTRY_CLEANUP_INTERVAL'"):
        parse({}, {"MOORING_REGISTRY_CLEANUP_INTERVALL": "1m"})


def test_an_old_variable_works_with_a_warning(caplog: pytest.LogCaptureFixture):
    settings = load(DOCUMENT, {"MOORING_REGISTRY_HEARTBEAT_INTERVAL": "4s"})
    assert settings.heartbeat.heartbeat_interval == 4
    (warning,) = warnings(caplog)
    assert "MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL" in warning


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("HEARTBEAT_HEARTBEAT_INTERVAL", "5", r"registry\.heartbeat\.heartbeat-interval"),
        ("CLEANUP_BRAKE_LEAST", "few", r"registry\.cleanup\.brake-least"),
        ("METRICS_COLLECTION_INTERVALS", "cpu=5s", "COLLECTION_INTERVALS must hold a map as JSON"),
        ("METRICS_COLLECTION_INTERVALS", "[]", r"registry\.metrics\.collection-intervals"),
    ],
)
def test_a_wrong_variable_names_its_setting(variable: str, text: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        parse({}, {f"MOORING_REGISTRY_{variable}": text})


def test_an_old_variable_beside_the_new_one_is_an_error():
    both = {
        "MOORING_REGISTRY_HEARTBEAT_INTERVAL": "4s",
        "MOORING_REGISTRY_HEARTBEAT_HEARTBEAT_INTERVAL": "4s",
    }
    with pytest.raises(InvalidRequest, match="both are set"):
        parse({}, both)


def test_yaml_is_not_loaded_for_a_mapping():
    script = """
import sys
from mooring.settings import parse
assert parse({"registry": {"cleanup": {"interval": "1s"}}}, {}).cleanup.interval == 1
assert "yaml" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_optional_duration_is_parsed_like_any_other():
    settings = {"registry": {"redis": {"consumer-timeout": "5s"}}}
    assert parse(settings, {}).redis.consumer_timeout == 5.0
    assert (
        parse({"registry": {"redis": {"consumer-timeout": None}}}, {}).redis.consumer_timeout
        is None
    )
    environ = {"MOORING_REGISTRY_REDIS_CONSUMER_TIMEOUT": "1m"}
    assert parse({}, environ).redis.consumer_timeout == 60.0
    with pytest.raises(
        InvalidRequest, match=r"registry.redis.consumer-timeout: 5 is not a duration"
    ):
        parse({"registry": {"redis": {"consumer-timeout": 5}}}, {})


@pytest.mark.parametrize("service", ["MOORING_REGISTRY", "MOORING_REGISTRY_REDIS"])
def test_variables_that_kubernetes_sets_for_services_are_no_settings(service: str):
    """Every pod gets variables for each Service of its namespace, also `mooring-registry`."""
    environ = {
        f"{service}_SERVICE_HOST": "10.96.0.7",
        f"{service}_SERVICE_PORT": "2379",
        f"{service}_SERVICE_PORT_CLIENT": "2379",
        f"{service}_PORT": "tcp://10.96.0.7:2379",
        f"{service}_PORT_2379_TCP": "tcp://10.96.0.7:2379",
        f"{service}_PORT_2379_TCP_PROTO": "tcp",
        f"{service}_PORT_2379_TCP_PORT": "2379",
        f"{service}_PORT_2379_TCP_ADDR": "10.96.0.7",
    }
    assert parse({}, environ) == parse({}, {})
    with pytest.raises(InvalidRequest, match=f"unknown variable {service}_PORT"):
        parse({}, {f"{service}_PORT": "6379"})
