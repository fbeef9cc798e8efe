"""What a verifier's page says of the store."""

from __future__ import annotations

from unittest.mock import Mock

from paceline.v1 import worker_pb2

from common.store.pool_worker import PoolCounts
from common.telemetry.metrics import Page
from verifier import metrics
from verifier.totals import Totals


def told(pools: object) -> dict[str, float]:
    """Samples of a page, by name, of metrics without labels of their own."""
    engine = Mock(totals=Totals(), preemptions=0)
    status = worker_pb2.WatchStatusResponse
    about = worker_pb2.DescribeResponse(tier=worker_pb2.TIER_VERIFIER)
    source = metrics.source(about, status, engine, Mock(kept=2), pools)  # type: ignore[arg-type]
    page = Page(source)
    source.fill(page)
    return {each.name: each.value for family in page.families for each in family.samples}


def test_what_the_store_did_not_take_is_counted() -> None:
    page = told(Mock(counts=PoolCounts(dropped=3, away=True)))
    assert page["paceline_store_available"] == 0
    assert page["paceline_ngrams_dropped_total"] == 3
    assert page["paceline_sessions"] == 2


def test_without_a_store_nothing_is_said_of_it() -> None:
    assert not told(None).keys() & {"paceline_store_available", "paceline_ngrams_dropped_total"}
