"""Drafts beside others go on only where they make everybody faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

import pytest

from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.totals import Totals

STEP_S = 0.004


class Alone(Gate):
    """Of the only method of an engine."""

    def __init__(
        self, *, first: bool, foretell: Callable[[int], bool | None] = lambda sequences: None
    ) -> None:
        self.totals = Totals()
        super().__init__(Crowd(self.totals), first=first, foretell=foretell)

    def drafting(self, sequences: int, now: float) -> bool:
        self.totals.sequences = sequences
        return super().drafting(sequences, now)


def _round(gate: Alone, sequences: int, tokens: int, *, drafts: bool) -> None:
    """What all sequences of a step tell the gate."""
    gate.totals.tokens += tokens
    for _ in range(sequences if drafts else 0):
        gate.joined()


def _run(
    gate: Alone, sequences: int, with_drafts: int, without: int, steps: int = 12_000, first: int = 0
) -> float:
    """Steps that commit so many tokens; the share of the second half that drafted."""
    drafted = 0
    for step in range(steps):
        on = gate.drafting(sequences, (first + step) * STEP_S)
        _round(gate, sequences, with_drafts if on else without, drafts=on)
        drafted += on and step >= steps // 2
    return drafted / (steps // 2)


def test_alone_it_is_always_open() -> None:
    assert _run(Alone(first=True), 1, with_drafts=1, without=9) == 1.0


@pytest.mark.parametrize("sequences", [2, 8, 31])
@pytest.mark.parametrize("first", [False, True])
def test_beside_others_the_better_mode_wins_and_the_other_is_tried_again(
    sequences: int, first: bool
) -> None:
    assert 0.85 < _run(Alone(first=first), sequences, with_drafts=12, without=8) < 1.0
    assert 0.0 < _run(Alone(first=first), sequences, with_drafts=7, without=8) < 0.15


def test_one_at_a_time_tries_what_it_does_not_know() -> None:
    totals = Totals()
    totals.sequences = 8
    crowd = Crowd(totals)
    trying, waiting = (Gate(crowd, first=True) for _ in range(2))
    assert trying.drafting(8, STEP_S)
    assert not waiting.drafting(8, STEP_S)


def test_loads_are_judged_apart() -> None:
    gate = Alone(first=True)
    assert _run(gate, 2, with_drafts=12, without=8) > 0.85
    assert _run(gate, 8, with_drafts=7, without=8) < 0.15
    assert _run(gate, 2, with_drafts=12, without=8) > 0.85


@pytest.mark.parametrize(("known", "pays"), [(2, False), (31, True)])
def test_what_pays_beside_many_pays_beside_few(known: int, pays: bool) -> None:
    """A load that was never tried begins with what another says of it, if it says anything."""
    gate, with_drafts = Alone(first=True), 12 if pays else 4
    _run(gate, known, with_drafts, without=8)
    drafted = _run(gate, 8, with_drafts, without=8, steps=400, first=12_000)
    assert (drafted > 0.5) is pays
    assert len(gate._levels[3].rates) == 1, "the other mode waits for its turn"


def test_what_pays_beside_few_may_not_beside_many() -> None:
    gate = Alone(first=True)
    _run(gate, 2, with_drafts=12, without=8)
    _run(gate, 8, with_drafts=4, without=8, steps=250, first=12_000)
    assert len(gate._levels[3].rates) == 2, "both are tried at once"


def test_of_two_loads_as_near_the_larger_one_says_more() -> None:
    gate = Alone(first=True)
    _run(gate, 4, with_drafts=12, without=8)
    _run(gate, 16, with_drafts=12, without=16)
    assert not gate.drafting(8, 24_000 * STEP_S)


@pytest.mark.parametrize("pays", [False, True])
def test_a_load_too_short_to_tell_is_as_those_around_it(pays: bool) -> None:
    """What is left of sixteen texts that began together."""
    gate, with_drafts = Alone(first=True), 24 if pays else 12
    _run(gate, 16, with_drafts, without=16)
    for burst in range(20):
        for step in range(140):
            on = gate.drafting(16 if step < 80 else 8, (12_000 + 140 * burst + step) * STEP_S)
            _round(gate, 16, with_drafts if on else 16, drafts=on)
        assert (gate._level, on) == (3, pays)
    assert not gate._levels[3].rates


@pytest.mark.parametrize(
    ("step_s", "tokens", "window_s"),
    [
        pytest.param(STEP_S, 16, 0.2, id="at least"),
        pytest.param(STEP_S, 8, 0.26, id="until 512 tokens have come"),
        pytest.param(0.05, 20, 0.3, id="for fewer"),
        pytest.param(0.05, 4, 0.8, id="until 64 tokens have come"),
        pytest.param(0.05, 2, 1.5, id="at most"),
    ],
)
def test_a_window_is_as_long_as_it_takes_to_tell(
    step_s: float, tokens: int, window_s: float
) -> None:
    gate, began = Alone(first=True), set()
    for step in range(round(30 / step_s)):
        _round(gate, 8, tokens, drafts=gate.drafting(8, step * step_s))
        began.add(gate._since)
    lengths = [later - since for since, later in pairwise(sorted(began))]
    assert statistics.median(lengths) == pytest.approx(window_s, rel=0.1), "to the end of a step"


@pytest.mark.parametrize(("with_drafts", "window_s"), [(15, 0.2), (8, 0.1)])
def test_a_hopeless_trial_is_a_short_one(with_drafts: int, window_s: float) -> None:
    gate, lengths = Alone(first=False), []
    since, drafted = 0.0, False
    for step in range(6000):
        on = gate.drafting(8, step * STEP_S)
        if gate._since != since:
            if drafted and gate._since - since > 2 * STEP_S:  # else drafts have only just come
                lengths.append(gate._since - since)
            since, drafted = gate._since, on
        _round(gate, 8, with_drafts if on else 16, drafts=on)
    assert len(lengths) > 1
    assert lengths == pytest.approx([window_s] * len(lengths), abs=2 * STEP_S)


def test_a_window_with_drafts_begins_with_them() -> None:
    """Drafters take a second to join, and texts hardly get on meanwhile."""
    gate = Alone(first=True)
    for step in range(750):
        on, joined = gate.drafting(8, step * STEP_S), step >= 225
        _round(gate, 8, (12 if joined else 1) if on else 8, drafts=on and joined)
    assert gate._levels[3].rates == pytest.approx({True: 3000, False: 2000}, rel=0.05)


@pytest.mark.parametrize("pays", [False, None])
def test_a_load_of_which_losses_are_foretold_is_left_without_drafts(pays: bool | None) -> None:
    """For a while: it is tried all the same, for what is foretold may be wrong."""
    gate = Alone(first=False, foretell={2: None, 8: pays}.__getitem__)
    drafted = _run(gate, 8, with_drafts=7, without=8, steps=1600)
    assert (drafted == 0.0) is (pays is False)
    assert _run(gate, 8, with_drafts=12, without=8, first=1600) > 0.85


def test_texts_that_begin_together_open_no_mirrors_on_the_way() -> None:
    """A load of 32 passes through those below, for a round or two each."""
    gate = Alone(first=False)
    for step, sequences in enumerate([*range(2, 33), *[32] * 20]):
        assert not gate.drafting(sequences, step * STEP_S)
        _round(gate, sequences, 8, drafts=False)


def test_drafts_that_never_come_are_not_waited_for() -> None:
    gate = Alone(first=True)
    for step in range(750):
        on = gate.drafting(8, step * STEP_S)
        _round(gate, 8, 4 if on else 8, drafts=False)
    assert gate._levels[3].rates == pytest.approx({True: 1000, False: 2000}, rel=0.05)


def test_a_bad_start_is_made_up_for() -> None:
    """The machine was busy with something else in the first window; drafts would pay, which shows
    once they are tried again."""
    gate, drafted = Alone(first=True), 0
    for step in range(9000):
        on = gate.drafting(8, step * STEP_S)
        _round(gate, 8, (1 if step < 75 else 12) if on else 8, drafts=on)
        drafted += on and step >= 6000
    assert drafted > 0.9 * 3000


@pytest.mark.parametrize("first", [False, True])
def test_a_pause_is_part_of_no_window(first: bool) -> None:
    gate = Alone(first=first)
    for step in range(100):
        _round(gate, 8, 8, drafts=gate.drafting(8, step * STEP_S))
    rates = dict(gate._levels[3].rates)
    gate.drafting(8, 100 * STEP_S + 5.0)
    assert gate._levels[3].rates == rates


@pytest.mark.parametrize("taken", [None, 10, 40])
def test_another_ones_trial_is_part_of_no_window(taken: int | None) -> None:
    """The first begins with step 20 and has 50."""
    gate = Alone(first=False, foretell=lambda sequences: False)
    for step in range(80):
        gate.totals.starting = int(step < 20)
        assert not gate.drafting(8, step * STEP_S)
        _round(gate, 8, 16, drafts=False)
        if step == taken:
            assert gate._crowd.take(object(), step * STEP_S)
    assert len(gate._levels[3].rates) == (taken is None)


def test_who_is_alone_gives_the_turn_back() -> None:
    gate = Alone(first=True)
    gate.drafting(8, 0.0)
    assert gate._crowd.taken(object(), 0.0)
    for step in range(400):
        gate.drafting(1, step * STEP_S)
    assert not gate._crowd.taken(object(), 400 * STEP_S)


def test_who_has_no_text_left_gives_the_turn_back() -> None:
    gate = Alone(first=True)
    assert gate.drafting(8, 0.0)
    gate.left()
    assert not gate._crowd.taken(object(), 0.0)


@pytest.mark.parametrize("taken", [False, True])
def test_a_trial_goes_on_where_nobody_took_its_turn_meanwhile(taken: bool) -> None:
    """Its last text ended, and the next one comes."""
    gate = Alone(first=True)
    for step in range(100):
        on = gate.drafting(8, step * STEP_S)
        _round(gate, 8, 12 if on else 8, drafts=on)
        if step == 40:
            for _ in range(2):  # another came, and went again at once
                gate.left()
            if taken:
                assert gate._crowd.take(object(), step * STEP_S)
        if step == 41:
            assert on is not taken
            assert gate._crowd.taken(object(), step * STEP_S)
    assert (True in gate._levels[3].rates) is not taken


def test_a_turn_that_nobody_gives_back_is_over_in_time() -> None:
    crowd, gone, waiting = Crowd(Totals()), object(), object()
    assert crowd.take(gone, 10.0)
    assert not crowd.take(waiting, 12.9)
    assert crowd.take(waiting, 13.0)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("steps", "meanwhile"), [(1, 0), (20, 0), (250, 0), (20, 30)])
def test_prompts_that_begin_a_load_are_part_of_no_window(
    first: bool, steps: int, meanwhile: int
) -> None:
    """Nor what others commit meanwhile."""
    gate = Alone(first=first)
    for step in range(steps + 180):
        on = gate.drafting(8, step * STEP_S)
        _round(gate, 8, meanwhile if step < steps else 12 if on else 8, drafts=on)
        gate.totals.starting = max(steps - 1 - step, 0)
    assert gate._levels[3].rates == pytest.approx({True: 3000, False: 2000}, rel=0.05)


def test_a_load_that_changes_while_prompts_are_computed_teaches_nothing() -> None:
    gate = Alone(first=False)
    for step in range(120):
        gate.totals.starting = 1
        gate.drafting(8 if step < 60 else 16, step * STEP_S)
        _round(gate, 8, 3, drafts=False)
    assert not gate._levels[3].rates


def test_prompts_are_no_part_of_what_a_trial_costs() -> None:
    gate, step = Alone(first=False), 0
    while not gate._load.level or not gate._levels[3].rates:
        gate.totals.starting = int(step < 50)
        gate.drafting(8, step * STEP_S)
        _round(gate, 8, 0 if step < 50 else 8, drafts=False)
        step += 1
    assert gate._levels[3]._leads[False] < 0.05


@pytest.mark.parametrize("first", [False, True])
def test_prompts_that_come_all_the_time_are_not_waited_for(first: bool) -> None:
    gate = Alone(first=first)
    gate.totals.starting = 1
    assert 0.0 < _run(gate, 8, with_drafts=7, without=8) < 0.15


def test_a_load_that_changes_within_a_window_teaches_nothing() -> None:
    gate = Alone(first=True)
    for step in range(1000):
        gate.drafting(2 if step // 50 % 2 else 31, step * STEP_S)
        gate.totals.tokens += 2
    assert all(not level.rates for level in gate._levels.values())


@pytest.mark.parametrize("most", [2, 4, 8, 16, 32])
def test_texts_that_end_as_others_begin_are_one_load(most: int) -> None:
    """A client with so many at once: now and then one is missing for a step or two."""
    gate, drafted = Alone(first=True), 0
    for step in range(6000):
        on = gate.drafting(most - (step % 7 < 2), step * STEP_S)
        _round(gate, most, 7 if on else 8, drafts=on)
        drafted += on and step >= 3000
    assert len(gate._levels) == 1
    assert drafted < 0.1 * 3000


def test_the_loser_is_tried_the_seldomer_the_more_it_loses_by() -> None:
    close, far = Alone(first=True), Alone(first=True)
    by_little = _run(close, 8, with_drafts=15, without=16)
    by_much = _run(far, 8, with_drafts=12, without=16, steps=24000)
    assert 0 < by_much < by_little / 2
    assert by_much * (1 - 12 / 16) < 0.005, "what the trials cost"
    assert _run(far, 8, with_drafts=24, without=16, steps=60000) > 0.85, "and found when it wins"


def test_windows_in_which_nothing_comes_settle_nothing() -> None:
    """As while long prompts are computed."""
    gate = Alone(first=True)
    _run(gate, 8, with_drafts=0, without=0, steps=1000)
    assert _run(gate, 8, with_drafts=12, without=8) > 0.85


def _bursts(
    gate: Alone,
    load_s: float,
    rest_s: float,
    rest: int,
    gain: float,
    tail: int = 0,
    seconds: float = 40.0,
) -> float:
    """Loads of 16 texts with another between them; the share of the last ten seconds' that draft.

    Args:
        gate: Decides.
        load_s: How long one lasts.
        rest_s: And what is between two.
        rest: Texts of that; 0 for a pause.
        gain: Tokens with drafts over those without.
        tail: Steps in which one of the sixteen is left at last.
    """
    now, tokens, drafted = 0.0, 0.0, []
    while now < seconds:
        since = now % (load_s + rest_s)
        busy = since < load_s - tail * STEP_S
        texts = 16 if busy else 1 if since < load_s else rest
        if texts:
            on = gate.drafting(texts, now)
            tokens += texts * (gain if on else 1)
            _round(gate, texts, int(tokens) - gate.totals.tokens, drafts=on)
            drafted += [on] if busy and now > seconds - 10 else []
        else:
            gate.left()
            gate.totals.idle_s += STEP_S
        now += STEP_S
    return sum(drafted) / len(drafted)


@pytest.mark.parametrize("rest", [pytest.param(0, id="pauses"), pytest.param(1, id="one text")])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("tail", [0, 2])
def test_short_bursts_tell_which_mode_is_better(rest: int, first: bool, tail: int) -> None:
    """What is between them is not taken for something that drafts did."""
    assert _bursts(Alone(first=first), 0.4, 0.3, rest, gain=1.6, tail=tail) > 0.8
    assert _bursts(Alone(first=first), 0.4, 0.3, rest, gain=0.6, tail=tail) < 0.2


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("tail", [0, 2])
def test_a_window_goes_on_over_the_pauses_of_bursts(first: bool, tail: int) -> None:
    assert _bursts(Alone(first=first), 0.16, 0.06, 0, gain=1.6, tail=tail) > 0.8
    assert _bursts(Alone(first=first), 0.16, 0.06, 0, gain=0.6, tail=tail) < 0.2


def test_who_is_alone_after_a_load_drafts_again() -> None:
    gate = Alone(first=True)
    assert _run(gate, 8, with_drafts=7, without=8, steps=2000) < 0.3
    alone = [gate.drafting(1, (2000 + step) * STEP_S) for step in range(400)]
    assert all(alone[200:])


@pytest.mark.parametrize(
    ("many", "idle_s", "most_s"),
    [
        pytest.param(16, 0.0, 0.06, id="the last of sixteen"),
        pytest.param(4, 0.0, 0.06, id="the last of four"),
        pytest.param(4, 0.1, 0.06, id="after a pause"),
        pytest.param(2, 0.0, 0.2, id="of two one may be missing for a moment"),
    ],
)
def test_who_is_left_alone_drafts_soon(many: int, idle_s: float, most_s: float) -> None:
    gate = Alone(first=False)
    _run(gate, many, with_drafts=7, without=8, steps=500)
    assert not gate.drafting(many, 500 * STEP_S)
    began = 501 * STEP_S + idle_s
    off = [not gate.drafting(1, began + step * STEP_S) for step in range(100)]
    assert 0 < sum(off) * STEP_S < most_s
    assert off == sorted(off, reverse=True)


def test_the_first_of_many_is_not_alone() -> None:
    """Bursts follow one another after a pause: their texts come one by one, and end so."""
    gate, now = Alone(first=False, foretell=lambda sequences: False), 0.0
    for burst in range(20):
        for step in range(60):
            assert not gate.drafting(16 if 5 <= step < 57 else 1, now) or not burst
            _round(gate, 16, 16, drafts=False)
            now += STEP_S
        gate.totals.idle_s += 0.2
        now += 0.2


@pytest.mark.parametrize(("pays", "together"), [(False, 16), (True, 16), (False, 2)])
def test_the_first_of_as_many_as_before_waits_for_them(pays: bool, together: int) -> None:
    """Of a burst long after the last one, where drafts do not pay beside sixteen."""
    gate, now = Alone(first=True), 12_000 * STEP_S
    _run(gate, 16, with_drafts=24 if pays else 12, without=16)
    totals = gate.totals
    totals.busy_since = totals.idle_s = now = now + 60.0
    totals.together_before = together
    held = together == 16 and not pays
    assert gate.drafting(1, now) is gate.drafting(1, now + 0.048) is not held
    assert gate.drafting(1, now + 0.052)


def test_a_trial_goes_on_in_the_next_burst() -> None:
    """A moment after the last one: else windows with drafts would be partly without."""
    gate, now, on = Alone(first=False, foretell=lambda sequences: False), 0.0, False
    while not on:
        on = gate.drafting(16, now)
        _round(gate, 16, 12 if on else 16, drafts=on)
        now += STEP_S
    totals = gate.totals
    totals.busy_since, totals.together_before = now, 16
    totals.idle_s += STEP_S / 2
    assert gate.drafting(1, now)


@pytest.mark.parametrize("texts", [1, 4])
def test_drafts_that_cost_others_more_than_they_bring_are_left_off(texts: int) -> None:
    """Steps take a third longer with them, and others, who pay for that, have other methods."""
    totals = Totals()
    gate, totals.sequences = Gate(Crowd(totals), first=True), 16
    now, drafted = 0.0, 0
    for step in range(12_000):
        on = gate.drafting(texts, now)
        now += STEP_S * (4 / 3 if on else 1)
        totals.tokens += 16 - texts + (2 * texts if on else texts)
        for _ in range(texts if on else 0):
            gate.joined()
        drafted += on and step >= 6000
    assert drafted < 0.1 * 6000


@pytest.mark.parametrize(
    ("gains", "costs", "best"),
    [
        pytest.param((0.5, 0.05), (0.0, 0.2), (True, False), id="one pays, one costs"),
        pytest.param((0.3, 0.1), (0.0, 0.3), (True, False), id="together they would lose"),
        pytest.param((0.4, 0.4), (0.1, 0.1), (True, True), id="both pay"),
        pytest.param((0.1, 0.1), (0.2, 0.3), (False, False), id="neither pays"),
    ],
)
@pytest.mark.parametrize("later", [0, 333])
def test_methods_are_told_apart(
    gains: tuple[float, float], costs: tuple[float, float], best: tuple[bool, bool], later: int
) -> None:
    """Eight texts each, which all draft whenever they may; those of the second begin later."""
    totals = Totals()
    crowd = Crowd(totals)
    gates, now, tokens = [Gate(crowd, first=True) for _ in range(2)], 0.0, 0.0
    drafted = [0, 0]
    for step in range(30_000):
        count = 1 + (step >= later)
        totals.sequences = 8 * count
        on = [gate.drafting(8, now) for gate in gates[:count]]
        now += STEP_S * (1 + sum(cost for cost, one in zip(costs, on, strict=False) if one))
        tokens += sum(8 + 8 * gain * one for gain, one in zip(gains, on, strict=False))
        totals.tokens = round(tokens)
        for gate, one in zip(gates, on, strict=False):
            for _ in range(8 if one else 0):
                gate.joined()
        if step >= 15_000:
            drafted = [was + one for was, one in zip(drafted, on, strict=True)]
    shares = [share / 15_000 for share in drafted]
    assert [share > 0.5 for share in shares] == list(best)
    assert all(share > 0.85 or share < 0.15 for share in shares)
