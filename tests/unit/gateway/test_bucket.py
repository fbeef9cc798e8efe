"""What may be spent at once, and how fast it comes back."""

from gateway.bucket import Bucket
from tests.clock import Clock


def test_it_holds_its_burst_and_fills_at_its_rate() -> None:
    clock = Clock()
    bucket = Bucket(2, 3, clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.now += 1.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 100
    assert bucket.level == 3
    bucket.charge(10)
    assert bucket.wait_s() == 3.5
    clock.now += 3.5
    assert bucket.wait_s() == 0
