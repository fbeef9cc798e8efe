"""PromQL as Prometheus' grammar reads it, and the metrics that it may name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from common.telemetry import worker_metrics
from drafter import metrics as drafter_metrics
from gateway import metrics as gateway_metrics
from verifier import metrics as verifier_metrics

TARGET = frozenset({"namespace", "pod", "app_kubernetes_io_name", "app_kubernetes_io_instance"})
"""Labels that whoever scrapes adds, by the PodMonitor."""

PROCESS = frozenset({"process_resident_memory_bytes", "process_cpu_seconds_total"})
"""What prometheus_client tells of every process."""

_HISTOGRAM = ("_bucket", "_sum", "_count")


def known() -> dict[str, list[set[str]]]:
    """Labels of every series that a service may have, by name; several tiers may have it."""
    found: dict[str, list[set[str]]] = {name: [set()] for name in PROCESS}
    for metrics, common in (
        (verifier_metrics.METRICS, worker_metrics.LABELS),
        (drafter_metrics.METRICS, worker_metrics.LABELS),
        (gateway_metrics.METRICS, ()),
    ):
        for metric in metrics:
            ends = _HISTOGRAM if metric.kind == "histogram" else ("",)
            for end in ends:
                labels = {*common, *metric.labels, *(["le"] if end == "_bucket" else [])}
                found.setdefault(metric.name + end, []).append(labels)
    return found


def parsed(query: str) -> Any:
    """Parses a query, Grafana's variables filled in.

    Raises:
        ValueError: It is no PromQL.
    """
    return promql.parse(re.sub(r"\$\w+", "5m", query))


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of series below a node."""
    if isinstance(node, promql.VectorSelector):
        yield node
        return
    for below in children(node):
        yield from selectors(below)


def aggregations(node: Any) -> Iterator[Any]:
    """Every aggregation below a node."""
    if isinstance(node, promql.AggregateExpr):
        yield node
    for below in children(node):
        yield from aggregations(below)


def children(node: Any) -> list[Any]:
    """The expressions right below one."""
    names = ("expr", "lhs", "rhs", "vector_selector", "param")
    found = [getattr(node, name) for name in names if getattr(node, name, None) is not None]
    return [*found, *getattr(node, "args", ())]


def check(query: str) -> None:
    """Asserts that every name and every label of a query exists."""
    tree = parsed(query)
    found = list(selectors(tree))
    assert found, query
    for selector in found:
        used = {matcher.name for matcher in selector.matchers.matchers} - TARGET
        assert any(used <= labels for labels in _labels(selector)), query
    for aggregation in aggregations(tree):
        if aggregation.modifier is None:
            continue
        wanted = set(aggregation.modifier.labels) - TARGET
        for selector in selectors(aggregation.expr):
            assert any(wanted <= labels for labels in _labels(selector)), query


def _labels(selector: Any) -> list[set[str]]:
    names = known()
    assert selector.name in names, f"no service has {selector.name}"
    return names[selector.name]
