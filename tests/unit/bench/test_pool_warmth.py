"""What lookahead came to, summed up."""

from __future__ import annotations

from bench.pool_warmth import line
from tests.unit.bench.samples import run


def test_steps_are_timed_from_the_first_token_on() -> None:
    """Rates are totals over totals; the clock saw a round less than each text took."""
    plain = [run(31, 0.09, 31), run(11, 0.03, 11)]  # 40 tokens in 0.12 s and 40 steps
    looked = [run(31, 0.06, 16, 30, 15), run(11, 0.02, 6, 10, 5)]  # 40 in 0.08 s and 20 steps
    assert line("warm", [(plain, looked)]) == (
        "warm: 1.50x plain, 1.91 tokens/pass, 0.50 of the guesses right, "
        "4.00 ms a step where plain ones take 3.00"
    )


def test_the_speed_up_is_the_median_of_the_repetitions() -> None:
    plain = [run(31, 0.09, 31)]
    runs = [(plain, [run(31, seconds, 16, 30, 15)]) for seconds in (0.09, 0.06, 0.01)]
    assert line("empty", runs).startswith("empty: 1.50x plain")
