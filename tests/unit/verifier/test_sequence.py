"""What is counted of one request."""

from __future__ import annotations

from verifier.sequence import Counts


def test_a_snapshot_stays_as_it_was() -> None:
    counts = Counts(method="draft")
    counts.add_round(5, 2, ["draft"] * 2)
    before = counts.snapshot()
    counts.add_round(4, 3, ["ngram"] * 3)
    assert before == Counts(
        method="draft",
        rounds=1,
        drafted_tokens=5,
        accepted_tokens=2,
        accepted_per_position=[1, 1],
        accepted_by_method={"draft": 2},
    )
    assert (counts.rounds, counts.drafted_tokens, counts.accepted_tokens) == (2, 9, 5)
    assert counts.accepted_per_position == [2, 2, 1]
    assert counts.accepted_by_method == {"draft": 2, "ngram": 3}
