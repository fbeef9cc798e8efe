"""Of two modes the faster one is used, though single windows say the other one is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from verifier.gates.contest import Contest

SCATTER = 0.13
"""Of a window, as a share of its rate: as measured where many texts begin and end together."""


def run(
    contest: Contest,
    windows: int,
    rate: Callable[[int], float],
    seed: int,
    scatter: float,
    *,
    first: bool = True,
) -> list[bool]:
    """Modes of windows in which tokens come at a rate of 1 without, and at some rate with."""
    noise, modes = random.Random(seed), []
    for window in range(windows):
        mode = contest.next_mode(first=first)
        known = rate(window) if mode else 1.0
        contest.learn(mode, max(known * (1 + noise.gauss(0, scatter)), 0.05))
        modes.append(mode)
    return modes


def share(rate: float, windows: int) -> float:
    """Of windows with it, over many contests."""
    runs = [
        run(Contest(), windows, lambda window: rate, seed, SCATTER, first=seed % 2 > 0)
        for seed in range(200)
    ]
    return sum(map(sum, runs)) / (200 * windows)


@pytest.mark.parametrize("first", [False, True])
def test_both_modes_are_tried_before_anything_is_known(first: bool) -> None:
    assert run(Contest(), 2, lambda window: 2.0, 1, 0.0, first=first) == [first, not first]


@pytest.mark.parametrize(
    ("guess", "least", "most", "trials"), [(False, 50, 80, 1), (True, 4, 20, 2)]
)
def test_what_is_known_from_elsewhere_is_believed_for_a_while(
    guess: bool, least: int, most: int, trials: int
) -> None:
    """Longer where it says to leave off, and longer once it was right; the other mode has its turn
    in the end."""
    contest, modes = Contest(), []
    for _ in range(100):
        modes.append(contest.next_mode(guess, first=not guess))
        contest.learn(modes[-1], 1.0 if modes[-1] is guess else 0.5)
    assert least < modes.index(not guess) < most
    assert modes.count(not guess) == trials


def test_a_first_window_that_was_odd_does_not_refute_a_guess() -> None:
    contest = Contest()
    for rate in (0.1, *7 * [1.2]):
        assert contest.next_mode(True)
        contest.learn(True, rate)
    assert not contest.next_mode(True)
    contest.learn(False, 1.0)
    assert contest.verdict


@pytest.mark.parametrize("later", [None, True])
def test_a_guess_stands_while_it_is_put_to_the_test(later: bool | None) -> None:
    """What a trial shows of drafts may change what is foretold of them."""
    contest = Contest()
    while not contest.next_mode(False):
        contest.learn(False, 1.0)
    contest.learn(True, 1.3)
    assert contest.next_mode(later), "the trial goes on"
    contest.learn(True, 0.6)
    assert contest.verdict is False


def test_only_windows_of_the_trial_speak_for_it() -> None:
    contest = Contest()
    contest.learn(contest.next_mode(None), 2.0)
    for _ in range(10):
        assert not contest.next_mode(False)
        contest.learn(False, 1.0)
    assert contest.verdict is None


@pytest.mark.parametrize(("rate", "likely"), [(0.75, 0.0), (0.9, 0.06), (2.0, 1.0)])
def test_what_was_foretold_is_not_given_up_for_a_lucky_window(rate: float, likely: float) -> None:
    """Of bursts of sixteen, whose windows had 666 to 1,600 tokens a second without drafts."""
    seen = (1476, 1355, 918, 1336, 1111, 1036, 1407, 1378, 728, 1190, 1377, 723, 1294, 1600, 666)
    won, noise = 0, random.Random(1)
    for _ in range(200):
        contest = Contest()
        while contest.verdict is None:
            mode = contest.next_mode(False, first=False)
            contest.learn(mode, (rate if mode else 1.0) * noise.choice(seen))
        won += contest.verdict
    assert abs(won / 200 - likely) < 0.07


@pytest.mark.parametrize(
    ("rate", "least", "most"),
    [(0.6, 0.0, 0.02), (0.78, 0.0, 0.03), (0.9, 0.0, 0.06), (1.3, 0.97, 1.0), (2.0, 0.98, 1.0)],
)
def test_the_slower_mode_has_few_windows(rate: float, least: float, most: float) -> None:
    assert least < share(rate, windows=1000) < most


@pytest.mark.parametrize("lead", [0, 2, 6])
def test_trials_cost_no_more_than_they_may(lead: int) -> None:
    """The time before their windows included, and that in which what they began is ended."""
    contest, lost, windows, rate = Contest(), 0.0, 0, 0.9
    contest.learn(False, 1.0)
    for _ in range(2000):
        mode = contest.next_mode()
        contest.learn(mode, rate if mode else 1.0, lead if mode else 0.0)
        windows += 1 + mode * (lead + 1)
        lost += mode * (lead + 2) * (1 - rate)
    assert 0.002 < lost / windows < 0.007


def test_the_way_to_a_trial_counts_though_the_trial_goes_on() -> None:
    """It led for two windows: the third, to which nothing led, decides against it."""
    rests = []
    for lead in (0.0, 4.0):
        contest = Contest()
        contest.learn(False, 1.0)
        contest.learn(True, 0.9, lead)
        while not contest.next_mode():
            contest.learn(False, 1.0)
        for rate in (1.2, 1.2, 0.9):
            assert contest.next_mode()
            contest.learn(True, rate, lead if rate > 1 and contest._led == 0 else 0.0)
        rests.append(0)
        while not contest.next_mode():
            contest.learn(False, 1.0)
            rests[-1] += 1
    assert rests[0] < rests[1]


@pytest.mark.parametrize(("rate", "rest"), [(0.9, 16), (0.6, 64)])
def test_a_clear_loss_is_believed_for_longer(rate: float, rest: int) -> None:
    contest = Contest()
    contest.learn(False, 1.0)
    contest.learn(True, rate, 0.5)
    modes = [contest.next_mode()]
    while not modes[-1]:
        contest.learn(False, 1.0)
        modes.append(contest.next_mode())
    assert len(modes) - 1 == rest


def test_only_a_trial_that_does_far_less_than_the_other_mode_is_hopeless() -> None:
    contest = Contest()
    assert not contest.hopeless(True, 1, 1.0), "nothing is known of the other"
    contest.learn(False, 100.0)
    assert not contest.hopeless(True, 80, 1.0)
    assert contest.hopeless(True, 70, 1.0)
    contest.learn(True, 50.0)
    assert not contest.hopeless(False, 1, 1.0), "it is no trial"


def test_one_lucky_window_changes_nothing() -> None:
    contest = Contest()
    run(contest, 2, lambda window: 0.5, 1, 0.0)
    while not contest.next_mode():
        contest.learn(False, 1.0)
    contest.learn(True, 2.0)
    modes = run(contest, 16, lambda window: 0.5, 1, 0.0)
    assert modes == [True] + 15 * [False], "it is looked into at once"
    assert contest.verdict is False


@pytest.mark.parametrize(("before", "after"), [(0.7, 1.5), (1.5, 0.7)])
def test_a_change_is_found(before: float, after: float) -> None:
    """Within the longest time between two trials, and the few windows it takes to be sure."""
    late = 0
    for seed in range(200):
        modes = run(
            Contest(),
            1000,
            lambda window: before if window < 500 else after,
            seed,
            SCATTER,
        )
        late += (after > 1) != modes[700]
    assert late < 10
