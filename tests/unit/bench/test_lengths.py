"""What methods came to behind texts of one length, summed up."""

from __future__ import annotations

import pytest

from bench.lengths import summed
from tests.unit.bench.samples import run


def test_rates_are_of_all_texts_and_ratios_of_each() -> None:
    plain = [run(3, seconds, 3) for seconds in (0.4, 0.4, 4.0)]
    drafted = [run(3, 0.1, 2, 6, 3), run(3, 0.2, 2, 2, 1), run(3, 4.0, 3)]
    line = summed(512, "draft", drafted, plain)
    assert line.tokens_per_s == pytest.approx(6 / 4.3)
    assert line.times_plain == pytest.approx(2.0)
    assert line.accepted == 0.5
    assert summed(512, "plain", plain, plain).accepted == 0.0


def test_texts_that_came_in_one_message_have_no_rate_to_compare_with() -> None:
    at_once, slow, drafted = run(3, 0.0, 1), run(3, 0.4, 3), run(3, 0.1, 2)
    assert summed(512, "draft", [drafted] * 2, [at_once, slow]).times_plain == pytest.approx(4.0)
    assert summed(512, "draft", [drafted], [at_once]).times_plain == 0.0


def test_a_method_that_writes_another_text_is_no_measurement() -> None:
    with pytest.raises(AssertionError, match="one seed, one text"):
        summed(512, "draft", [run(3, 0.1, 2, id_=5)], [run(3, 0.4, 3)])
