from __future__ import annotations

import pytest

from bench.deployment import IN_LOCKSTEP
from bench.round_trips import by_round
from common.config import load
from tests.unit.bench.samples import one_pass, sample, speculation
from verifier.config import VerifierConfig


def test_a_round_is_what_the_clock_saw_of_it() -> None:
    """The first round of each prompt ends before the clock starts."""
    one = one_pass(
        sample(20, 0.4, speculation=speculation(11, 40, 10)),
        sample(10, 0.2, speculation=speculation(6, 20, 5)),
    )
    rounds = by_round([one, one])
    assert rounds.drafted == pytest.approx(60 / 15)
    assert rounds.committed == pytest.approx(30 / 15)
    assert rounds.seconds == pytest.approx(0.6 / 15)


def test_lockstep_is_a_verifier_that_asks_for_nothing_ahead() -> None:
    settings = load(
        VerifierConfig,
        ["--model", "models/target"],
        prog="verifier",
        description="",
        environ=IN_LOCKSTEP,
    )
    assert settings.engine.draft_fanout == 0
