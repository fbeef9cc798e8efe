"""An average that says nothing happens where nothing happens."""

from __future__ import annotations

import pytest

from common.fading_mean import FadingMean


def test_the_first_value_is_the_mean_and_later_ones_move_it() -> None:
    mean = FadingMean(weight=0.5)
    assert mean.at(0.0) == 0.0
    mean.add(8.0, 0.0)
    assert mean.at(0.0) == 8.0
    mean.add(4.0, 1.0)
    assert mean.at(1.0) == 6.0


def test_it_is_held_for_a_moment_and_fades_then() -> None:
    mean = FadingMean(weight=0.5)
    mean.add(8.0, 0.0)
    assert mean.at(2.0) == 8.0
    assert mean.at(4.0) == pytest.approx(4.0)
    assert mean.at(60.0) < 1e-6
    assert mean.at(60.0, held=True) == 8.0


def test_what_has_faded_weighs_no_more() -> None:
    mean = FadingMean(weight=0.5)
    mean.add(8.0, 0.0)
    mean.add(2.0, 1000.0)
    assert mean.at(1000.0) == pytest.approx(1.0)
