"""The files below deploy/ for Prometheus and Grafana match what the server exposes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mooring.model import Instance
from mooring.server.api.monitoring import STATES, labels
from mooring.server.live.problems import KINDS, SEVERITIES
from mooring.testing.servers import ServerProcess, free_port
from tests.admin import Admin
from tests.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
_METRIC = re.compile(r"\b(?:mooring|process|python)_\w+")
_SELECTOR = re.compile(r"\b((?:mooring|process)_\w+)\{([^}]*)\}")
_BY = re.compile(r"\b(?:by|on|without) \(([^)]*)\)")
_OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the label of a histogram."""


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return document


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m")
    for variable in dashboard()["templating"]["list"]:
        yield variable.get("definition", "")


async def exposed(admin: Admin) -> dict[str, set[str]]:
    """The names of all samples, and their labels."""
    text = (await admin.get("/metrics")).text
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if (
            family.type == "counter"
        ):  # counters with labels have no samples before the first increment
            samples.setdefault(f"{family.name}_total", set())
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_every_queried_metric_exists(admin: Admin):
    async with admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)) as one:
        await admin.get("/admin/overview")
        one.update(healthy=False)

        async def sampled() -> bool:
            wanted = {"mooring_heartbeat_delay_seconds", "mooring_service_problem"}
            return wanted <= set(await exposed(admin))

        await eventually(sampled)
        samples = await exposed(admin)
        known = set().union(*samples.values()) | _OF_PROMETHEUS
        for expression in expressions():
            for name in _METRIC.findall(expression):
                assert name in samples, expression
            for name, matchers in _SELECTOR.findall(expression):
                for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
                    ours = samples[name] or {"outcome"}
                    assert label in ours | _OF_PROMETHEUS, expression
            for listed in _BY.findall(expression):
                assert set(listed.split(", ")) <= known | {"outcome"}, expression
            assert expression.count("(") == expression.count(")"), expression


def test_queried_states_exist():
    for expression in expressions():
        for states in re.findall(r'state[=!]~?"([^"]*)"', expression):
            assert set(states.split("|")) <= set(STATES), expression


def test_queried_problems_exist():
    for expression in expressions():
        for kinds in re.findall(r'kind[=!]~?"([^"]*)"', expression):
            assert set(kinds.split("|")) <= set(KINDS), expression
        for severities in re.findall(r'severity[=!]~?"([^"]*)"', expression):
            assert set(severities.split("|")) <= set(SEVERITIES), expression


def firing(name: str, text: str) -> set[str]:
    """The services for which an alert on problems fires, given a scrape."""
    (rule,) = [rule for rule in rules() if rule["alert"] == name]
    shape = (
        r'max by \(service\)\s*\(mooring_service_problem\{kind=~?"(.*)",severity="(.*)"\}\) == 1'
    )
    kinds, severity = re.fullmatch(shape, rule["expr"]).groups()  # type: ignore[union-attr]
    return {
        sample.labels["service"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "mooring_service_problem"
        and sample.labels["kind"] in kinds.split("|")
        and sample.labels["severity"] == severity
        and sample.value == 1
    }


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_an_alert_fires_for_a_lost_service_but_not_for_a_retired_one(admin: Admin):
    for name, ttl in (("lost", 1.0), ("retired", 30.0)):
        wanted = {"host": "10.0.0.1", "port": 80, "ttl": ttl}
        answer = await admin.post(f"/registry/services/{name}/instances", wanted, as_="service")
        assert answer.status_code == 201
        await eventually(lambda name=name: admin.fleet.service(name) is not None)  # type: ignore[misc]
    mine = {"incarnation": answer.json()["incarnation"]}
    left = "/registry/services/retired/instances/10.0.0.1:80"
    assert (await admin.delete(left, as_="service", query=mine)).status_code == 204
    known = [admin.fleet.service(name) for name in ("lost", "retired")]
    await eventually(lambda: all(service and service.emptied for service in known))

    async def rings() -> bool:
        text = (await admin.get("/metrics")).text
        assert "retired" not in firing("MooringServiceEmpty", text)
        return firing("MooringServiceEmpty", text) == {"lost"}

    await eventually(rings)
    known[0].emptied -= datetime.timedelta(hours=2)  # type: ignore[union-attr,operator]

    async def is_given_up() -> bool:
        text = (await admin.get("/metrics")).text
        return not firing("MooringServiceEmpty", text) and (
            firing("MooringServiceGone", text) == {"lost"}
        )

    await eventually(is_given_up)
    admin.fleet.forget("lost")

    async def is_over() -> bool:
        return not firing("MooringServiceGone", (await admin.get("/metrics")).text)

    await eventually(is_over)


def test_every_alert_says_what_to_do():
    all_rules = rules()
    assert len({rule["alert"] for rule in all_rules}) == len(all_rules)
    for rule in all_rules:
        assert rule["alert"].startswith("Mooring")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in rule["expr"] or label == "instance" or label == "service", rule["alert"]


def test_labels_in_the_text_of_an_alert_are_kept_by_its_expression():
    """A sum keeps only the labels that it groups by."""
    for rule in rules():
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        if kept := re.match(r"(?:sum|max) by \(([^)]*)\)", rule["expr"]):
            assert used <= set(kept[1].split(", ")), rule["alert"]


def test_values_that_several_servers_report_of_one_registry_are_not_summed():
    added_up = re.compile(r"sum(?: by \(([^)]*)\))?\s*\(mooring_(?:instances|brake|services)\b")
    for expression in expressions():
        for kept in added_up.findall(expression):
            assert "instance" in kept.split(", "), expression


def test_the_dashboard_is_valid():
    board = dashboard()
    panels = board["panels"]
    assert board["title"] == "Mooring"
    assert len({panel["id"] for panel in panels}) == len(panels)
    spots: set[tuple[int, int]] = set()
    for panel in panels:
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        covered = {
            (x, y)
            for x in range(where["x"], where["x"] + where["w"])
            for y in range(where["y"], where["y"] + where["h"])
        }
        assert not covered & spots, f"{panel['title']} lies on another"
        spots |= covered
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def find_prometheus(program: str) -> str:
    """Debian's 2.42, below `.tools` or on PATH."""
    unpacked = Path.cwd() / ".tools/prometheus/usr/bin" / program
    path = str(unpacked) if unpacked.exists() else shutil.which(program)
    assert path, f"{program} is not installed: make tools (or: apt-get install prometheus)"
    return path


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_prometheus_scrapes_and_discovers_with_the_file(admin: Admin, tmp_path: Path):
    (tmp_path / "token").write_text(admin.tokens["viewer"])
    settings = (DEPLOY / "prometheus.yaml").read_text()
    address = admin.url.removeprefix("http://")
    for shipped, here in (
        ("/etc/prometheus/mooring-token", str(tmp_path / "token")),
        ("127.0.0.1:7480", address),
        ("15s", "1s"),
    ):
        assert shipped in settings
        settings = settings.replace(shipped, here)
    shutil.copy(DEPLOY / "prometheus-alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(settings)
    port = free_port()
    command = [
        find_prometheus("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yaml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    orders = Instance("shop/orders", "10.0.0.1", 80, ports={"metrics": 9100})
    with ServerProcess(command, tmp_path / "log") as server:
        server.start()
        async with admin.hub.register(orders), httpx.AsyncClient(trust_env=False) as client:

            async def targets() -> dict[str, dict[str, Any]]:
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.get(f"http://127.0.0.1:{port}/api/v1/targets")
                    if answer.status_code == 200:
                        active = answer.json()["data"]["activeTargets"]
                        return {target["labels"]["job"]: target for target in active}
                return {}

            async def works() -> bool:
                active = await targets()
                return active.get("mooring", {}).get("health") == "up" and "services" in active

            await eventually(works, what="the server is scraped and its services are found")
            assert (await targets())["services"]["labels"]["service"] == "shop/orders"


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_promtool_accepts_the_metrics(admin: Admin):
    async with admin.hub.register(Instance("shop/orders", "10.0.0.1", 80)):

        async def sampled() -> bool:
            return "mooring_heartbeat_delay_seconds" in await exposed(admin)

        await eventually(sampled)
        text = (await admin.get("/metrics")).text
    check = await asyncio.create_subprocess_exec(
        find_prometheus("promtool"), "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await check.communicate(text.encode())
    assert (check.returncode, output.decode()) == (0, "")


def test_the_configuration_of_prometheus_uses_existing_files_and_labels():
    document = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert all((DEPLOY / name).exists() for name in document["rule_files"])
    (services,) = [job for job in document["scrape_configs"] if "http_sd_configs" in job]
    known = labels(Instance("x", "h", 1))
    for relabeling in services["relabel_configs"]:
        assert set(relabeling["source_labels"]) <= set(known)
    jobs = {job["job_name"] for job in document["scrape_configs"]}
    used = set(re.findall(r'job="(\w+)"', " ".join(expressions())))
    assert used <= jobs
