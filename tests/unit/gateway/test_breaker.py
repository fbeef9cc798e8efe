"""When a worker gets no requests: after failures in a row, for longer and longer."""

from gateway.breaker import Breaker
from gateway.bucket import Bucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(3):
        assert breaker.allows
        breaker.tried()
        breaker.failed()
    assert not breaker.allows
    return breaker


def test_failures_with_a_success_between_leave_it_closed() -> None:
    breaker = Breaker(Clock())
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allows


def test_one_request_at_a_time_tries_it_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 1.0
    assert breaker.allows
    breaker.tried()
    assert not breaker.allows
    breaker.succeeded()
    assert breaker.allows


def test_each_failed_trial_doubles_the_pause_up_to_a_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    pauses = []
    for _ in range(7):
        began = clock.now
        while not breaker.allows:
            clock.now += 0.5
        pauses.append(clock.now - began)
        breaker.tried()
        breaker.failed()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_many_failures_at_once_open_it_once() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(100):
        breaker.failed()
    clock.now += 1.0
    assert breaker.allows


def test_after_a_success_it_opens_as_at_first() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 1.0
    breaker.succeeded()
    for _ in range(3):
        breaker.failed()
    assert not breaker.allows
    clock.now += 1.0
    assert breaker.allows


def test_a_bucket_holds_its_burst_and_fills_at_its_rate() -> None:
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
