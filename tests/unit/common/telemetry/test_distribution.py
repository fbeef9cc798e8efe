"""A histogram of plain numbers counts what a reference counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.telemetry.distribution import Distribution

values = st.lists(st.floats(0, 20, allow_nan=False), max_size=50)
bounds = st.lists(st.floats(0.001, 10), min_size=1, max_size=8, unique=True).map(sorted)


@given(values, bounds)
def test_a_value_falls_into_the_first_bucket_that_reaches_it(
    seen: list[float], ends: list[float]
) -> None:
    distribution = Distribution(ends)
    for value in seen:
        distribution.observe(value)
    below = [sum(value <= end for value in seen) for end in ends]
    total = 0
    for end, count in zip(below, distribution.counts, strict=False):
        total += count
        assert total == end
    assert sum(distribution.counts) == len(seen)
    assert distribution.sum == pytest.approx(sum(seen))  # whose last bit is Python's own
