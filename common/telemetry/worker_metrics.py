"""Metrics that verifiers and drafters have alike."""

from __future__ import annotations

from paceline.v1 import worker_pb2

from common.rpc.convert import TIER_NAMES
from common.telemetry.distribution import Distribution
from common.telemetry.metrics import Metric, Page

LABELS = ("tier", "model", "pool")
"""On every metric of a worker."""

INFO = Metric(
    name="paceline_worker_info",
    kind="gauge",
    help="1; its labels say what the worker is.",
    labels=("version", "dtype", "device", "accelerator"),
)
ACCEPTING = Metric(
    name="paceline_accepting",
    kind="gauge",
    help="1 while new work is taken, 0 while the worker drains.",
)
KV_CACHE_USAGE = Metric(
    name="paceline_kv_cache_usage_perc",
    kind="gauge",
    help="Share of the key/value cache that sequences hold, from 0 to 1.",
)
STEP_SECONDS = Metric(
    name="paceline_engine_step_seconds", kind="histogram", help="Duration of an engine step."
)
BATCH_OCCUPANCY = Metric(
    name="paceline_batch_occupancy_ratio",
    kind="gauge",
    help="Moving average of the share of a step that is in use, sequences or rows, whichever is "
    "more, from 0 to 1.",
)
STALE_DRAFTS = Metric(
    name="paceline_stale_drafts_total",
    kind="counter",
    help="Draft messages dropped because their fence did not match.",
)

METRICS = (INFO, ACCEPTING, KV_CACHE_USAGE, STEP_SECONDS, BATCH_OCCUPANCY, STALE_DRAFTS)


def labels(description: worker_pb2.DescribeResponse) -> dict[str, str]:
    """The labels of every metric of a worker."""
    values = (TIER_NAMES[description.tier], description.model, description.pool)
    return dict(zip(LABELS, values, strict=True))


def fill(
    page: Page,
    description: worker_pb2.DescribeResponse,
    status: worker_pb2.WatchStatusResponse,
    steps: Distribution,
) -> None:
    """Puts in what both tiers report.

    Args:
        page: Of this scrape.
        description: What the worker is.
        status: Its load.
        steps: Seconds of its engine's steps.
    """
    about = description
    page.put(INFO, 1, about.version, about.dtype, about.device, about.accelerator)
    page.put(ACCEPTING, status.accepting)
    total = status.kv_blocks_total
    page.put(KV_CACHE_USAGE, (total - status.kv_blocks_free) / total if total else 0.0)
    page.put_all(STEP_SECONDS, steps)
    page.put(BATCH_OCCUPANCY, status.batch_occupancy)
    page.put(STALE_DRAFTS, status.stale_drafts)
