"""Steps are counted one by one, also where several are told at once."""

from __future__ import annotations

import pytest

from common.step_meter import StepMeter
from common.telemetry.distribution import Distribution


def test_several_steps_at_once_count_as_one_after_the_other() -> None:
    lengths, other = Distribution(), Distribution()
    together, apart = StepMeter(lengths), StepMeter(other)
    for seconds, steps in ((0.1, 2), (0.3, 3)):
        together.add(seconds, steps)
        for _ in range(steps):
            apart.add(seconds, 1)
    assert together.steps == apart.steps == 5
    assert together.mean_ms == apart.mean_ms == pytest.approx(300 - 200 * 0.95**3)
    assert lengths.sum == other.sum == pytest.approx(1.1)
