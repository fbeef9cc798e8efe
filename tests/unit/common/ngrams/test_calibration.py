"""How far predictions can be trusted."""

from __future__ import annotations

import pytest

from common.ngrams.calibration import Calibration, Trust


def test_calibration_tends_to_what_happens_and_forgets() -> None:
    calibration = Calibration()
    bucket = calibration.bucket(1, 2, 0.5)
    assert calibration.chance(bucket, 0.5) == 0.5
    for passed in [True, False, False, False] * 100:
        calibration.test(bucket, passed=passed)
    assert calibration.chance(bucket, 0.5) == pytest.approx(0.25, abs=0.02)
    for _ in range(3000):
        calibration.test(bucket, passed=True)
    assert calibration.chance(bucket, 0.5) > 0.95


def test_trust_follows_one_sequence_and_comes_back() -> None:
    trust = Trust()
    for _ in range(50):
        trust.test(0.8, passed=False)
        trust.age()
    assert trust.factor < 0.35
    for _ in range(100):
        trust.age()
    assert trust.factor == pytest.approx(1.0, abs=0.05)
