from __future__ import annotations

import pytest

from bench.confidence import grid, rate, ratio, sure, whole
from bench.measurement import Pass
from tests.unit.bench.samples import one_pass, sample


def test_rates_are_total_tokens_over_total_time() -> None:
    """A mean of rates would say 55."""
    estimate = rate(grid([one_pass(sample(100, 1.0), sample(100, 10.0))]))
    assert estimate.value == pytest.approx(200 / 11)


def test_the_median_of_the_repetitions_counts() -> None:
    passes = [one_pass(sample(100, seconds)) for seconds in (2.0, 1.0, 4.0)]
    assert rate(grid(passes)).value == pytest.approx(50.0)


def test_ratios_pair_the_repetitions() -> None:
    """A slow moment that hits both variants leaves their ratio alone, and sure."""
    fast = [one_pass(sample(200, seconds)) for seconds in (1.0, 10.0, 1.0)]
    slow = [one_pass(sample(100, seconds)) for seconds in (1.0, 10.0, 1.0)]
    estimate = ratio(grid(fast), grid(slow))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2.0, 2.0, 2.0))


def test_prompts_that_differ_widen_the_interval() -> None:
    plain = [one_pass(*(sample(100, 1.0) for _ in range(4)))] * 3
    even = [one_pass(*(sample(100, 0.5) for _ in range(4)))] * 3
    uneven = [one_pass(*(sample(100, seconds) for seconds in (0.2, 0.3, 0.7, 0.8)))] * 3
    sure, unsure = ratio(grid(even), grid(plain)), ratio(grid(uneven), grid(plain))
    assert sure.value == unsure.value == pytest.approx(2.0)
    assert sure.low == sure.high == pytest.approx(2.0)
    assert unsure.low < 1.7
    assert unsure.high > 2.4


def test_repetitions_that_differ_widen_the_interval() -> None:
    passes = [one_pass(sample(100, seconds)) for seconds in (0.5, 1.0, 2.0)]
    estimate = rate(grid(passes))
    assert (estimate.low, estimate.high) == pytest.approx((50.0, 200.0))


def test_the_same_figures_give_the_same_interval() -> None:
    passes = [one_pass(sample(90, 1.0), sample(30, 0.7)), one_pass(sample(90, 2), sample(30, 0.6))]
    assert rate(grid(passes)) == rate(grid(passes))


def test_a_part_of_the_prompts() -> None:
    passes = [one_pass(sample(100, 1.0), sample(300, 1.0), sample(500, 1.0))]
    assert rate(grid(passes, [1, 2])).value == pytest.approx(400.0)


def test_concurrent_passes_count_as_a_whole() -> None:
    together = Pass(samples=(sample(10, 9.0), sample(10, 9.0)), tokens=1000, seconds=2.0)
    alone = one_pass(sample(100, 1.0), sample(100, 1.0))
    assert rate(whole([together])).value == pytest.approx(500.0)
    assert ratio(whole([together]), grid([alone])).value == pytest.approx(5.0)


def test_one_repetition_has_no_interval() -> None:
    passes = [one_pass(sample(100, 1.0), sample(100, 2.0))]
    for estimate in (rate(grid(passes)), rate(whole(passes)), ratio(grid(passes), grid(passes))):
        assert (estimate.low, estimate.high) == (None, None)
        assert estimate.within == (estimate.value, estimate.value)


@pytest.mark.parametrize(("repetitions", "left_out"), [(3, 0), (7, 0), (9, 1), (12, 2), (17, 4)])
def test_the_interval_of_single_figures_holds_the_median_as_often_as_it_says(
    repetitions: int, left_out: int
) -> None:
    """As many figures are left out at each end as may lie on one side once in forty times."""
    passes = [Pass(samples=(), tokens=100 + number, seconds=1.0) for number in range(repetitions)]
    found = rate(whole(passes))
    assert found.within == (100 + left_out, 99 + repetitions - left_out)


def test_of_few_repetitions_the_interval_is_less_sure() -> None:
    """All of them may come out on one side of the true median."""
    assert [sure(count) for count in (1, 2, 3, 5, 6)] == [0, 50, 75, 93.75, 95]


def test_nothing_decoded_is_no_error() -> None:
    nothing = [one_pass(sample(0, 0.0))]
    assert rate(grid(nothing)).value == 0.0
    assert ratio(grid(nothing), grid(nothing)).value == 0.0
