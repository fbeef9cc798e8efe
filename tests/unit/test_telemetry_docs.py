"""The tables of docs/telemetry.md are those of the services."""

from __future__ import annotations

import re
from pathlib import Path

from common.telemetry import worker_metrics
from common.telemetry.config import TracingConfig
from common.telemetry.metrics import Metric
from drafter import metrics as drafter_metrics
from gateway import metrics as gateway_metrics
from verifier import metrics as verifier_metrics

TEXT = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.name}`", metric.kind, labels, metric.help)
    return "|".join(f" {cell} " if cell else " " for cell in cells)


def test_every_metric_is_in_its_table() -> None:
    common = worker_metrics.METRICS
    wanted = [
        *common,
        *(metric for metric in verifier_metrics.METRICS if metric not in common),
        *(metric for metric in drafter_metrics.METRICS if metric not in common),
        *gateway_metrics.METRICS,
    ]
    rows = re.findall(r"^\|( `paceline_\w+` \| (?:counter|gauge|histogram) \|.*)\|$", TEXT, re.M)
    assert rows == [row(metric) for metric in wanted]


def test_defaults_of_tracing_are_as_told() -> None:
    default = TracingConfig()
    for name in ("sample_ratio", "round_ratio"):
        assert f"| `tracing.{name}` | {getattr(default, name)} |" in TEXT
