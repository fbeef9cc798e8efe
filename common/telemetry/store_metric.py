"""The metric of whoever uses a store."""

from __future__ import annotations

from common.telemetry.metrics import Metric

STORE = Metric(
    name="paceline_store_available",
    kind="gauge",
    help="1 while the store answers, 0 while it is away; absent where none is configured.",
)
