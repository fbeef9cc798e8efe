"""Dashboards, scalers and docs name only metrics that services have, with labels they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from gateway import metrics
from tests.helm import queries
from tests.helm.chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    RELEASE,
    ROOT,
    Object,
    example,
    objects_of,
    of_kind,
    one,
    overlay,
    pod_of,
    render,
    services,
    values,
)
from tests.helm.variants import VARIANTS

FILES = sorted((CHART / "dashboards").glob("*.json"))
TELEMETRY = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")

ABOUT_THE_FLEET = {each.name for each in (metrics.WORKERS, metrics.BREAKER, metrics.DESIRED)}
"""What each gateway says of the same workers."""


def dashboard(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def panels(file: Path) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(file)["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_of_a_dashboard_names_what_exists(file: Path) -> None:
    for panel in panels(file):
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            queries.check(target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            by = {
                label
                for each in queries.aggregations(queries.parsed(target["expr"]))
                if each.modifier is not None
                for label in each.modifier.labels
            }
            assert shown <= by | queries.TARGET, panel["title"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_variable_of_a_dashboard_is_there_and_used(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    variables = {each["name"]: each for each in dashboard(file)["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert used == set(variables)
    for name, variable in variables.items():
        if name == "datasource":
            continue
        series, label = re.fullmatch(
            r"label_values\((.+), (\w+)\)", variable["query"]["query"]
        ).groups()  # type: ignore[union-attr]
        queries.check(f"count by ({label}) ({series})")


def test_dashboards_do_not_overlap_and_are_told_apart() -> None:
    uids = [dashboard(file)["uid"] for file in FILES]
    assert len(set(uids)) == len(FILES) == 3
    for file in FILES:
        everything = dashboard(file)["panels"]
        assert len({panel["id"] for panel in everything}) == len(everything)
        covered: set[tuple[int, int]] = set()
        for panel in everything:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & covered, panel["title"]
            assert max(x for x, _ in cells) < 24
            covered |= cells


def test_every_metric_of_the_wire_to_prometheus_is_on_some_dashboard() -> None:
    shown = {
        selector.name
        for file in FILES
        for panel in panels(file)
        for target in panel["targets"]
        for selector in queries.selectors(queries.parsed(target["expr"]))
    }
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in queries.known()}
    missing = names - {re.sub("_(bucket|count)$", "", name) for name in shown}
    assert missing <= {"process_cpu_seconds_total"}


def test_what_fails_is_a_share_of_all_generations() -> None:
    """Only those that were placed are timed: in an outage there are none."""
    (panel,) = (
        panel
        for panel in panels(CHART / "dashboards" / "gateway.json")
        if panel["title"] == "Share of generations that fail"
    )
    (target,) = panel["targets"]
    series = queries.selectors(queries.parsed(target["expr"]))
    assert {each.name for each in series} == {metrics.REQUESTS.name}


def test_the_checks_see_mistakes() -> None:
    for query in (
        "sum(rate(paceline_generation_token_total[5m]))",
        "sum by (tenant) (paceline_num_requests_running)",
        'paceline_num_requests_running{method="draft"}',
    ):
        with pytest.raises(AssertionError):
            queries.check(query)
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        queries.check("sum by (pool (paceline_workers)")


def monitored(**more: Any) -> list[Object]:
    return objects_of(render(overlay(VARIANTS["monitored"], more)))


def test_dashboards_come_as_config_maps_with_the_label_that_is_asked_for() -> None:
    found = [
        item
        for item in of_kind(monitored(), "ConfigMap")
        if item["metadata"]["labels"].get("dashboards") == "yes"
    ]
    assert len(found) == 3
    for item, file in zip(found, FILES, strict=True):
        ((name, text),) = item["data"].items()
        assert name == file.name
        assert json.loads(text) == dashboard(file)
        assert item["metadata"]["annotations"] == {"grafana_folder": "Paceline"}
    for name in EXAMPLES:
        assert all("config.yaml" in each["data"] for each in of_kind(example(name), "ConfigMap"))


def test_a_scaler_follows_the_desired_replicas_of_its_own_pool() -> None:
    objects = objects_of(render(VARIANTS["scaled-by-desired-replicas"]))
    (scaled,) = of_kind(objects, "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert trigger["metadata"]["threshold"] == "1"
    queries.check(trigger["metadata"]["query"])
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    (selector,) = queries.selectors(queries.parsed(trigger["metadata"]["query"]))
    assert {each.name: each.value for each in selector.matchers.matchers} == {
        "namespace": NAMESPACE,
        "app_kubernetes_io_name": "paceline",
        "app_kubernetes_io_instance": RELEASE,
        "tier": "verifier",
        "pool": "v",
    }
    (followed,) = of_kind(objects, "HorizontalPodAutoscaler")
    (metric,) = followed["spec"]["metrics"]
    name, matched = metric["external"]["metric"]["name"], metric["external"]["metric"]["selector"]
    release = {"app_kubernetes_io_name": "paceline", "app_kubernetes_io_instance": RELEASE}
    assert matched == {"matchLabels": {"tier": "drafter", "pool": "d", **release}}
    assert any({"tier", "pool"} <= labels for labels in queries.known()[name])


def assert_greatest(query: str) -> int:
    """Asserts that what every gateway says of one fleet is not added up; returns how often."""
    tree = queries.parsed(query)
    about = [each.name for each in queries.selectors(tree) if each.name in ABOUT_THE_FLEET]
    greatest = [
        (selector.name, set(aggregation.modifier.labels))
        for aggregation in queries.aggregations(tree)
        if str(aggregation.op) == "max" and aggregation.modifier is not None
        for selector in queries.selectors(aggregation.expr)
        if selector.name in ABOUT_THE_FLEET
    ]
    assert about == [name for name, _ in greatest], query
    assert all("tier" in labels for _, labels in greatest), query
    return len(about)


def test_what_every_gateway_says_of_the_fleet_is_never_added_up() -> None:
    asked = [target["expr"] for file in FILES for p in panels(file) for target in p["targets"]]
    (scaled,) = of_kind(objects_of(render(VARIANTS["scaled-by-desired-replicas"])), "ScaledObject")
    asked += [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    asked += re.findall(r"`(max[^`]*paceline_[^`]*)`", TELEMETRY)
    (rule,) = adapter_rules()
    series = re.search(r"paceline_\w+", rule["seriesQuery"])
    assert series is not None
    wanted = rule["metricsQuery"].replace("<<.Series>>", series[0])
    asked.append(wanted.replace("<<.LabelMatchers>>", 'pool="d"'))
    assert sum(map(assert_greatest, asked)) >= 7


def adapter_rules() -> list[dict[str, Any]]:
    """What the docs tell the Prometheus adapter."""
    (block,) = re.findall(r"```yaml\n(externalRules:.*?)```", TELEMETRY, flags=re.DOTALL)
    rules: list[dict[str, Any]] = yaml.safe_load(block)["externalRules"]
    return rules


def test_metrics_that_values_name_exist() -> None:
    """In examples and variants, as an operator would write them."""
    named = 0
    for each in (*map(example, EXAMPLES), *(objects_of(render(v)) for v in VARIANTS.values())):
        for scaler in of_kind(each, "HorizontalPodAutoscaler", "ScaledObject"):
            for name in re.findall(r"paceline_\w+", json.dumps(scaler["spec"])):
                assert name in queries.known()
                named += 1
    assert named


def test_a_scaler_without_anything_to_follow_is_refused() -> None:
    given = overlay(
        VARIANTS["one-verifier"], {"verifier": {"pools": {"v": {"autoscaling": {"kind": "keda"}}}}}
    )
    with pytest.raises(helm.HelmError, match=r"metrics\.prometheus\.address will do"):
        render(given)
    with pytest.raises(helm.HelmError, match="nothing to scrape"):
        monitored(metrics={"enabled": False})


def test_pods_are_scraped_where_they_serve_and_only_by_whom_may() -> None:
    objects = monitored()
    for deployment in services(objects):
        (container,) = pod_of(deployment)["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        config = one(objects, "ConfigMap", deployment["metadata"]["name"])["data"]["config.yaml"]
        assert f"metrics_port: {ports['metrics']}\n" in config
    (monitor,) = of_kind(objects, "PodMonitor")
    targets = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    assert targets >= {label for label in queries.TARGET if label.startswith("app_")}
    for name, count in (("t4-a10-h100", 3), ("cpu-only", 0)):
        rules = [
            rule
            for policy in of_kind(example(name), "NetworkPolicy")
            for rule in policy["spec"]["ingress"]
            if rule["ports"] == [{"port": "metrics"}]
        ]
        assert len(rules) == count
        assert all("namespaceSelector" in peer for rule in rules for peer in rule["from"])
    quiet = objects_of(render(overlay(values("cpu-only"), {"metrics": {"enabled": False}})))
    assert "metrics" not in json.dumps([pod_of(each) for each in services(quiet)])


def test_spans_leave_gateways_and_verifiers_for_the_collector_only() -> None:
    objects = objects_of(render(VARIANTS["traced"]))
    collector = [{"podSelector": {"matchLabels": {"app": "collector"}}}]
    for tier in ("gateway", "verifier", "drafter"):
        policy = one(objects, "NetworkPolicy", f"demo-paceline-{tier}")
        rules = [rule for rule in policy["spec"]["egress"] if rule.get("to") == collector]
        assert [rule["ports"] for rule in rules] == [[{"port": 4317}]] * (tier != "drafter")
    for deployment in services(objects):
        config = one(objects, "ConfigMap", deployment["metadata"]["name"])["data"]["config.yaml"]
        assert ("tracing:" in config) == ("drafter" not in deployment["metadata"]["name"])


def test_the_docs_name_what_exists() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md")) + (
        ROOT / "README.md"
    ).read_text(encoding="utf-8")
    names = set(re.findall(r"\bpaceline_[a-z_]+\b", text))
    series = {re.sub("_(bucket|sum|count)$", "", name) for name in queries.known()}
    assert names - set(queries.known()) - series <= {"paceline_"}
