"""What a drafter tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from paceline.v1 import worker_pb2

from common.telemetry import worker_metrics
from common.telemetry.metrics import Metric, Page, Source
from drafter.engine import DraftEngine

SESSIONS = Metric(name="paceline_draft_sessions", kind="gauge", help="Sessions that are mirrored.")
DRAFTING = Metric(
    name="paceline_draft_sessions_drafting",
    kind="gauge",
    help="Mirrored sessions with a branch in the making.",
)
WAIT = Metric(
    name="paceline_draft_turn_wait_seconds",
    kind="gauge",
    help="Moving average of the time a branch waits for its turn.",
)
TOKENS = Metric(name="paceline_drafted_tokens_total", kind="counter", help="Tokens drafted.")
BRANCHES = Metric(
    name="paceline_draft_branches_total",
    kind="counter",
    help="Branches sent, those drafted ahead of an outcome included.",
)
OPENED = Metric(
    name="paceline_draft_sessions_opened_total", kind="counter", help="Sessions taken on."
)
DROPPED = Metric(
    name="paceline_draft_sessions_dropped_total",
    kind="counter",
    help="Sessions refused or given up: no room, or no fit.",
)

METRICS = (
    *worker_metrics.METRICS,
    *(SESSIONS, DRAFTING, WAIT, TOKENS, BRANCHES, OPENED, DROPPED),
)


def source(
    description: worker_pb2.DescribeResponse,
    status: Callable[[], worker_pb2.WatchStatusResponse],
    engine: DraftEngine,
) -> Source:
    """What a drafter has to tell.

    Args:
        description: What it is.
        status: Its load, as gateways are told.
        engine: Counts.
    """

    def fill(page: Page) -> None:
        now, totals = status(), engine.totals
        worker_metrics.fill(page, description, now, totals.steps)
        page.put(SESSIONS, now.running)
        page.put(DRAFTING, now.waiting)
        page.put(WAIT, now.draft_wait_ms / 1e3)
        page.put(TOKENS, now.tokens)
        page.put(BRANCHES, totals.branches)
        page.put(OPENED, totals.opened)
        page.put(DROPPED, totals.dropped)

    return Source(metrics=METRICS, fill=fill, labels=worker_metrics.labels(description))
