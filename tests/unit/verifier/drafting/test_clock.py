"""Waiting for drafters: bounded, and given up for a while where it does not pay."""

from __future__ import annotations

import pytest

from verifier.drafting.clock import DraftClock, Silence


def test_patience_follows_the_round_trip_within_bounds() -> None:
    clock = DraftClock(Silence())
    first = clock.patience_s
    clock.answered(4, 0.05)
    assert clock.patience_s == 0.2
    for _ in range(100):
        clock.answered(4, 1e-4)
    assert clock.patience_s == 0.02
    for _ in range(100):
        clock.answered(4, 30.0)
    assert clock.patience_s == first == 0.5


@pytest.mark.parametrize(("answers", "most_s"), [(0, 2.5), (50, 1.3)])
def test_a_drafter_that_hangs_costs_ever_less(answers: int, most_s: float) -> None:
    """Between pauses little where it used to be quick; after the second it is known to hang."""
    clock, now, waited_s, hung = DraftClock(Silence()), 0.0, 0.0, []
    for _ in range(answers):
        clock.answered(4, 0.001)
    while now < 300:
        if not clock.silence.paused(now):
            asked = now
            now += clock.patience_s
            waited_s += clock.patience_s
            if clock.silence.missed(asked, now):
                hung.append((now, waited_s))
        else:
            now += 0.05
    hung_at, before_s = hung[0]
    assert hung_at < 3.5
    assert before_s < most_s
    assert waited_s < 0.15 * now, "a second of each further stream, ever less often"


def test_who_hung_has_longer_by_its_next_stream() -> None:
    """It may be slow at first, with all its mirrors to make anew: else it would never get there."""
    silence = Silence()
    assert [silence.missed(at, at + 1) for at in (0.0, 2.0, 4.0)] == [False, False, True]
    assert not silence.missed(10.0, 10.5)
    assert not silence.paused(10.5)
    assert not silence.missed(10.6, 11.0)
    assert silence.paused(12.9)
    assert not silence.missed(13.0, 13.2)
    assert silence.paused(17.1)
    assert silence.missed(17.3, 17.5)
    silence.broken()
    assert [silence.missed(at, at + 1) for at in (30.0, 32.0, 34.0)] == [False, False, True]


def test_late_branches_alone_do_not_pause_a_drafter() -> None:
    clock = DraftClock(Silence())
    for at in range(100):
        clock.answered(4, 0.01)
        for _ in range(8):  # eight sessions wait for one hiccup
            clock.silence.missed(at, at + 0.04)
        assert not clock.silence.paused(at + 0.04)


def test_one_answer_restores_trust() -> None:
    clock = DraftClock(Silence())
    for at in range(4):
        clock.silence.missed(at, at + 0.5)
    assert clock.silence.paused(3.6)
    clock.answered(4, 0.01)
    clock.silence.missed(100.0, 100.1)
    assert not clock.silence.paused(100.2)


def test_a_probe_that_comes_sooner_says_that_the_way_is_new() -> None:
    clock = DraftClock(Silence())
    for _ in range(100):
        clock.answered(4, 0.05)
    clock.answered(2, 0.002)
    assert clock.cost.at(4) > 0.04, "by chance, perhaps"
    clock.answered(2, 0.002, probe=True)
    assert clock.cost.at(4) < 0.01
    for _ in range(3):
        clock.answered(2, 0.05, probe=True)
    assert clock.cost.at(4) > 0.01, "slower ones teach as ever"


def test_one_answer_that_was_held_up_says_nothing_of_the_next_and_two_do() -> None:
    clock = DraftClock(Silence())
    for _ in range(50):
        clock.answered(4, 0.001)
    clock.answered(4, 0.03)
    assert clock.cost.at(4) == pytest.approx(0.001)
    for _ in range(3):
        clock.answered(4, 0.001)
        clock.answered(4, 0.03)
    assert clock.cost.at(4) == pytest.approx(0.001)
    for _ in range(5):
        clock.answered(4, 0.03)
    assert clock.cost.at(4) > 0.003


def test_probes_come_soon_at_first_and_seldom_in_the_end() -> None:
    """Drafts that paid a moment ago may pay again; each probe that finds otherwise makes the next
    one later, up to half a percent of the time."""
    clock = DraftClock(Silence())
    for _ in range(2):
        intervals = []
        for now in range(6):
            clock.probed(float(now), 0.004)
            intervals.append(clock.probe_at - now)
        assert intervals == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 0.8])
        clock.paid()
