"""What is not listed now, but was of late."""

from __future__ import annotations

from gateway.remembered import Remembered
from tests.clock import Clock


def test_a_name_is_kept_for_an_hour_after_it_was_last_here() -> None:
    clock = Clock()
    remembered: Remembered[str] = Remembered(clock)
    remembered.add(["a", "b"])
    clock.now = 1000
    remembered.add(["b"])
    clock.now = 3601
    assert list(remembered.recent) == ["b"]
    clock.now = 4601
    assert not remembered.recent
