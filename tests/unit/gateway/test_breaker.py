"""When a worker gets no requests: after failures in a row, for longer and longer."""

from gateway.breaker import Breaker
from tests.clock import Clock


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
