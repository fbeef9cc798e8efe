"""What is left of a distribution, and what becomes of it where numbers are at their limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model import native
from common.model.distribution import Listed, Whole, distributions
from common.model.row import Row
from common.model.tree import Drawn
from common.sampling_params import SamplingParams


def test_a_share_of_a_distribution_is_a_token_that_may_come() -> None:
    chances = np.zeros(12)
    chances[[2, 6]] = 0.25, 0.75
    ids = np.array([2, 5, 6, 9])
    shares = [2.0**-33, 0.2499, 0.25, 0.5, 1 - 2.0**-33, 1.0]
    for some in (Listed(ids, chances[ids]), Whole(torch.tensor(chances).log(), 0.0)):
        assert [some.at(share) for share in shares] == [2, 2, 6, 6, 6, 6]


@given(st.integers(0, 2**31), st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True))
def test_what_a_draw_leaves_of_a_distribution_is_the_same_of_few_and_of_all(
    seed: int, ids: list[int]
) -> None:
    """Tokens that only the draft model has, 10 and 11, take nothing away."""
    chances = np.random.default_rng(seed).dirichlet(np.ones(10))
    q = np.random.default_rng(seed + 1).dirichlet(np.ones(len(ids)))
    drawn = Drawn(tuple(ids), tuple(q.tolist()))
    few = Listed(np.arange(10), chances)
    left, also_left = few.without(drawn), Whole(torch.tensor(chances * 7).log(), math.log(7))
    also_left = also_left.without(drawn)
    assert left is not None
    assert also_left is not None
    expected = chances.copy()
    for token, chance in zip(ids, q, strict=True):
        if token < 10:
            expected[token] -= chance
    expected = expected.clip(min=0) / expected.clip(min=0).sum()
    np.testing.assert_allclose(left.chances, expected, atol=1e-12)
    np.testing.assert_allclose(also_left.listed().chances, expected, atol=1e-12)
    assert few.without(Drawn(tuple(range(10)), tuple(chances.tolist()))) is None
    whole = Whole(torch.tensor(chances).log(), 0.0)
    assert whole.without(Drawn(tuple(range(10)), tuple(chances.tolist()))) is None


def test_what_rounding_leaves_of_a_distribution_is_nothing() -> None:
    chances, drawn = np.array([0.25, 0.75]), Drawn((0, 1), (0.25, math.nextafter(0.75, 0)))
    for some in (Listed(np.arange(2), chances), Whole(torch.tensor(chances).log(), 0.0)):
        assert some.without(drawn) is None


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}], ids=["whole", "cut"])
def test_chances_of_a_low_temperature_are_numbers(cut: dict[str, int]) -> None:
    """Though the exponentials of its scores are none."""
    params = SamplingParams(temperature=0.001, **cut)
    (found,) = distributions(torch.tensor([[3.0, 3.001, -9.0]]), [Row(params=params, position=5)])
    assert found.chance(1) == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-3)


def test_rows_that_compiled_code_is_not_sure_of_are_cut_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts: list[dict[str, Any]] = [
        {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 0.7, "top_k": 2},
    ]
    rows = [Row(params=SamplingParams(**cut), position=5) for cut in cuts]
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.5, 1.0, 0.0]])
    expected = distributions(logits, rows)
    unsure = np.zeros(logits.shape, np.float32), [False] * len(rows)
    monkeypatch.setattr(native, "survivors", lambda *_: unsure)
    for one, other in zip(distributions(logits, rows), expected, strict=True):
        assert one.listed().ids.tolist() == other.listed().ids.tolist()
        assert one.listed().chances == pytest.approx(other.listed().chances)
