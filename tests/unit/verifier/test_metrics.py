"""What a verifier's page says of its engine and of the store."""

from __future__ import annotations

from unittest.mock import Mock

from paceline.v1 import worker_pb2

from common.store.pool_worker import PoolCounts
from common.telemetry.metrics import Page
from verifier import metrics
from verifier.failures import Failures
from verifier.totals import Totals


def engine() -> Mock:
    """One that has done nothing yet."""
    limits = Mock(methods=("plain", "draft", "ngram"))
    return Mock(totals=Totals(), failures=Failures(), preemptions=0, limits=limits)


def filled(engine: Mock, pools: object = None) -> Page:
    """What it has to tell."""
    status = worker_pb2.WatchStatusResponse
    about = worker_pb2.DescribeResponse(tier=worker_pb2.TIER_VERIFIER)
    source = metrics.source(about, status, engine, Mock(kept=2), pools)  # type: ignore[arg-type]
    page = Page(source)
    source.fill(page)
    return page


def told(pools: object) -> dict[str, float]:
    """Samples of a page, by name, of metrics without labels of their own."""
    families = filled(engine(), pools).families
    return {each.name: each.value for family in families for each in family.samples}


def labelled(page: Page, name: str, label: str) -> dict[str, float]:
    """Samples of one metric, by a label."""
    samples = (each for family in page.families for each in family.samples)
    return {each.labels[label]: each.value for each in samples if each.name == name}


def test_what_may_be_counted_is_there_before_it_is() -> None:
    """A rate knows of no event that its counter comes with."""
    one = engine()
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        counter = f"paceline_spec_decode_num_{name}_total"
        assert labelled(filled(one), counter, "method") == {"draft": 0, "ngram": 0}
    failures = "paceline_engine_failures_total"
    assert labelled(filled(one), failures, "where") == {"pass": 0, "passes": 0, "draft": 0}
    one.totals.round("draft", 5, 3)
    one.totals.round("draft+ngram", 4, 1)
    one.failures.add("pass", RuntimeError("boom"), {})
    page = filled(one)
    accepted = labelled(page, "paceline_spec_decode_num_accepted_tokens_total", "method")
    assert accepted == {"draft": 3, "ngram": 0, "draft+ngram": 1}
    assert labelled(page, failures, "where")["pass"] == 1


def test_what_the_store_took_and_did_not_take_is_counted() -> None:
    counts = PoolCounts(dropped=3, written=5, read=7, evicted=9, away=True)
    page = told(Mock(counts=counts))
    assert page["paceline_store_available"] == 0
    assert page["paceline_ngrams_dropped_total"] == 3
    assert page["paceline_ngrams_written_total"] == 5
    assert page["paceline_ngram_sets_read_total"] == 7
    assert page["paceline_ngram_sets_evicted_total"] == 9
    assert page["paceline_sessions"] == 2


def test_without_a_store_nothing_is_said_of_it() -> None:
    assert not [name for name in told(None) if "_store_" in name or "_ngram" in name]
