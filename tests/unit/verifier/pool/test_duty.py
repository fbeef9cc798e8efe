"""What runs in every round goes on where sequences are faster with it."""

from __future__ import annotations

import pytest

from verifier.pool.duty import Duty


@pytest.mark.parametrize(
    ("more", "longer", "most", "least"),
    [(1.3, 1.2, 1.0, 0.85), (1.3, 1.4, 0.15, 0.0), (1.0, 1.02, 0.15, 0.0)],
)
def test_more_tokens_must_outweigh_longer_rounds(
    more: float, longer: float, most: float, least: float
) -> None:
    """Ten tokens take ten milliseconds without it; the other way is tried now and then."""
    duty, runs = Duty(), 0
    for round_ in range(40_000):
        tokens, seconds = (int(10 * more), 0.01 * longer) if duty.due else (10, 0.01)
        runs += duty.due and round_ >= 20_000
        duty.observe(tokens=tokens, seconds=seconds)
    assert least < runs / 20_000 < most
