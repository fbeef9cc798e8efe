"""The draft length follows acceptance and cost, down to nothing and back."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verifier.cost import StepCost
from verifier.drafting.length import STANDS, Acceptance, CostLine, DraftLength, gain


def _steps(seconds: float) -> StepCost:
    """A target whose steps take so long, however many rows they have."""
    return StepCost(((1, seconds), (64, seconds)))


def _train(length: DraftLength, acceptance: float, rounds: int = 200, drafted: int = 5) -> None:
    draw = random.Random(0)
    for _ in range(rounds):
        accepted = 0
        while accepted < drafted and draw.random() < acceptance:
            accepted += 1
        length.observe(drafted, accepted)


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
def test_acceptance_is_estimated_without_bias(acceptance: float) -> None:
    length = DraftLength(Acceptance())
    _train(length, acceptance)
    assert length.acceptance.rate == pytest.approx(acceptance, abs=0.12)


@given(
    acceptance=st.floats(0.05, 0.98),
    verify_ms=st.floats(0.5, 50),
    way_ms=st.floats(0, 50),
    token_ms=st.floats(0.05, 10),
)
def test_the_choice_has_the_best_expected_rate(
    acceptance: float, verify_ms: float, way_ms: float, token_ms: float
) -> None:
    length = DraftLength(Acceptance())
    _train(length, acceptance)
    alpha = length.acceptance.rate

    def draft_s(tokens: int) -> float:
        return (way_ms + token_ms * tokens) / 1e3

    def rate(tokens: int) -> float:
        expected = sum(alpha**k for k in range(tokens + 1))
        return expected / (verify_ms / 1e3 + (draft_s(tokens) if tokens else 0))

    chosen = length.choose(8, _steps(verify_ms / 1e3), draft_s)
    assert rate(chosen) == pytest.approx(max(map(rate, range(9))))


class Costs(StepCost):
    """Counts how often it is asked."""

    asked = 0

    def round_s(self, nodes: int) -> float:
        self.asked += 1
        return super().round_s(nodes)


TABLE = [(1, 1e-3), (4, 1.1e-3), (8, 1.6e-3), (64, 9e-3)]


def test_a_choice_stands_for_a_few_rounds() -> None:
    length = DraftLength(Acceptance(prior=0.8, weight=1e6), trial=0)
    cost = Costs(TABLE)
    chosen, once = length.choose(8, cost, lambda tokens: 1e-3, foresight=0.7), cost.asked
    for _ in range(STANDS - 1):
        assert length.choose(8, cost, lambda tokens: 9.0) == chosen
    assert cost.asked == once
    assert length.choose(8, cost, lambda tokens: 9.0) == 0


def test_a_choice_is_of_its_number_of_texts_and_of_its_trial() -> None:
    length = DraftLength(Acceptance(prior=0.8, weight=1e6), trial=1)
    cost = StepCost(TABLE)

    def choose(texts: int = 1) -> int:
        return length.choose(8, cost, lambda tokens: 3e-3, texts=texts)

    assert choose() > 0, "on trial, at any price"
    assert 0 < choose(8) < choose()
    length.observe(1, 1)
    assert choose() == 0


@given(
    acceptance=st.floats(0.05, 0.98),
    way_ms=st.floats(0, 10),
    rooms=st.lists(st.integers(0, 10), max_size=2 * STANDS),
)
def test_where_a_text_is_about_to_end_only_what_is_left_counts(
    acceptance: float, way_ms: float, rooms: list[int]
) -> None:
    def new(trial: int) -> DraftLength:
        return DraftLength(Acceptance(prior=acceptance, weight=1e6), trial)

    def draft_s(tokens: int) -> float:
        return way_ms / 1e3

    cost = StepCost(TABLE)
    for trial in (0, 100):
        length = new(trial)
        if not length.choose(8, cost, draft_s):
            continue
        for room in rooms:
            best = new(trial).choose(min(room, 8), cost, draft_s)
            assert length.choose(8, cost, draft_s, room=room) == best


@dataclass
class Case:
    """All that a choice rests on."""

    cost: StepCost
    acceptance: Acceptance
    texts: int = 1
    way_s: float = 5e-4
    token_s: float = 1e-4
    foresight: float = 0.7
    slowness: float = 1.0

    def draft_s(self, tokens: int) -> float:
        return self.way_s + self.token_s * tokens

    def choose(self, length: DraftLength) -> int:
        length._resting = 0  # not what is looked at here
        return length.choose(8, self.cost, self.draft_s, self.foresight, self.slowness, self.texts)


def _others(case: Case) -> None:
    case.cost.observe(rows=20, sequences=10, tokens=10, seconds=3e-3)


CHANGES = {
    "texts": lambda case: replace(case, texts=8),
    "way": lambda case: replace(case, way_s=4e-3, token_s=0.0),
    "token": lambda case: replace(case, way_s=0.0, token_s=case.draft_s(8) / 8),
    "slope": lambda case: replace(case, way_s=case.draft_s(1) - 5e-4, token_s=5e-4),
    "foresight": lambda case: replace(case, foresight=0.99),
    "slowness": lambda case: replace(case, slowness=4.0),
    "acceptance": lambda case: case.acceptance.observe(2000, 1960) or case,
    "others": lambda case: _others(case) or case,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("flat", [True, False])
def test_what_a_choice_rests_on_counts_in_a_few_rounds(name: str, flat: bool) -> None:
    """After any one change the same is chosen as without a choice before."""
    cost = _steps(1e-3) if flat else StepCost(TABLE)
    case = Case(cost, Acceptance(prior=0.95, weight=1e3))
    length = DraftLength(case.acceptance, trial=0)
    assert case.choose(length) > 0
    case = CHANGES[name](case)
    new = DraftLength(case.acceptance, trial=0)
    for _ in range(STANDS - 1):
        case.choose(length)
    assert case.choose(length) == case.choose(new)
    assert length.least == new.least


def test_drafts_that_are_there_at_once_may_be_long() -> None:
    length = DraftLength(Acceptance(prior=0.7, weight=1e6))

    def draft_s(tokens: int) -> float:
        return 0.001 + 0.0006 * tokens

    blind = length.choose(8, _steps(0.004), draft_s)
    asked = [length.choose(8, _steps(0.004), draft_s, foresight=1.0) for _ in range(STANDS)]
    assert asked[-1] > blind


@pytest.mark.parametrize(("row_s", "texts"), [(1e-5, 1), (1e-4, 1), (1e-5, 8), (1e-4, 8)])
def test_a_token_is_worth_what_its_row_costs(row_s: float, texts: int) -> None:
    """One that is right with this chance brings as much as all others do in the time it takes."""
    length = DraftLength(Acceptance(prior=0.9, weight=1e6), trial=9)
    cost = StepCost([(1, 1e-3), (1001, 1e-3 + 1000 * row_s)])
    chosen = length.choose(8, cost, lambda tokens: 1e-3, foresight=1.0, texts=texts)
    expected = sum(0.9**k for k in range(chosen + 1))
    seconds = 1e-3 + (texts * (1 + chosen) - 1) * row_s
    worth = texts * expected / seconds * row_s
    assert length.least == pytest.approx((worth,) * 8, rel=0.01)


def test_a_row_is_worth_what_it_costs_beside_those_before_it() -> None:
    """Up to four rows cost nothing, the next three half a plain step, for they are made together;
    then each costs as much."""
    table = [(1, 1e-3), (4, 1e-3), (5, 1.5e-3), (7, 1.5e-3), (9, 2.5e-3)]
    length = DraftLength(Acceptance(prior=0.9, weight=1e6), trial=0)
    length.choose(8, StepCost(table), lambda tokens: 1e-4, foresight=1.0)
    rate = max(
        sum(0.9**k for k in range(rows)) / StepCost(table).step_s(rows) for rows in (4, 7, 9)
    )
    rows = [0.0, 0.0, 0.0, *[0.5e-3 / 3] * 3, 0.5e-3, 0.5e-3]
    assert length.least == pytest.approx([min(rate * row_s, 0.9) for row_s in rows])


def test_a_token_that_is_waited_for_costs_its_time_too() -> None:
    def least(foresight: float) -> tuple[float, ...]:
        length = DraftLength(Acceptance(prior=0.8, weight=1e6))
        length.choose(8, _steps(0.002), lambda tokens: 1e-4 * tokens, foresight=foresight)
        return length.least

    assert least(1.0) == (0.0,) * 8, "rows cost nothing here"
    assert least(0.0)[0] == 0.0, "for the first one it has to wait in any case"
    assert min(least(0.0)[1:]) > max(least(0.5)) > 0.0


def test_where_drafts_do_not_pay_probes_go_as_far_as_they_would() -> None:
    """As far as tokens bring more than all do plainly in the time they take."""
    length = DraftLength(Acceptance(prior=0.01, weight=1e6), trial=0)
    cost = StepCost([(1, 1e-3), (1001, 1e-3 + 1000 * 1e-4)])
    asked = [length.choose(8, cost, lambda tokens: 1e-3, foresight=1.0) for _ in range(20)]
    assert max(asked) == 2
    assert length.least == pytest.approx((1e-4 / 1e-3,) * 8)


def test_drafts_are_never_wanted_so_sure_that_there_are_none() -> None:
    length = DraftLength(Acceptance(prior=0.9, weight=1e6))
    length.choose(8, StepCost([(1, 1e-3), (1001, 10.0)]), lambda tokens: 1e-3)
    assert length.least == (0.9,) * 8


def test_what_one_token_more_is_waited_for_others_do_not_wait_for() -> None:
    def least(token_s: float, texts: int) -> float:
        length = DraftLength(Acceptance(prior=0.8, weight=1e6))
        cost = StepCost([(1, 1e-3), (64, 1e-3 + 63e-5)])
        length.choose(4, cost, lambda tokens: token_s * tokens, texts=texts)
        return length.least[-1]

    assert least(1e-4, 8) <= least(0.0, 8)
    assert least(1e-4, 1) > least(0.0, 1)


def test_a_round_is_expected_to_take_what_its_draft_came_to() -> None:
    length = DraftLength(Acceptance(prior=0.8, weight=1e6))
    cost = StepCost([(1, 1e-3), (64, 1e-3 + 63e-5)])
    assert length.expected_s(1) == 0.0
    chosen = length.choose(4, cost, lambda tokens: 1e-4 * tokens)
    assert chosen == 4
    for came in range(1, 5):
        assert length.expected_s(came) == pytest.approx(1e-3 + came * 11e-5)
    assert length.expected_s(9) == 0.0


def test_texts_beside_each_other_do_not_wait_for_one_another() -> None:
    """Where the way takes two steps, and rows cost time beyond eight."""
    table = [(1, 0.0010), (8, 0.0011), (64, 0.0088)]
    cost = StepCost(table)
    cost.observe(rows=12, sequences=2, tokens=8, seconds=0.0016)  # the other came as far

    def chosen(texts: int) -> int:
        length = DraftLength(Acceptance(prior=0.8, weight=1e6), trial=0)
        return length.choose(5, cost, lambda tokens: 0.002, texts=texts)

    assert chosen(1) == 0, "whoever shares the step would have to wait"
    assert chosen(2) == 5, "who also drafts has rounds of its own meanwhile"
    assert chosen(16) == 0, "all rows of all texts take longer than they bring"


def test_nothing_is_drafted_ahead_where_others_fill_the_time() -> None:
    """A draft takes as long as thirty rows would, were the drafter not as busy."""
    cost = StepCost([(1, 1e-3), (101, 2e-3)])

    def ahead(texts: int) -> bool:
        length = DraftLength(Acceptance(prior=0.8, weight=1e6))
        assert length.choose(5, cost, lambda tokens: 6e-4, texts=texts) == 5
        return length.ahead

    assert [ahead(texts) for texts in (1, 2, 5, 7, 16)] == [True, True, True, False, False]


def test_good_drafts_grow_and_hopeless_ones_rest() -> None:
    good, bad = DraftLength(Acceptance()), DraftLength(Acceptance())
    _train(good, 0.95)
    _train(bad, 0.02)

    def draft_s(tokens: int) -> float:
        return 0.001 + 0.0006 * tokens

    assert good.choose(8, _steps(0.004), draft_s) >= 6
    asked = [bad.choose(8, _steps(0.004), draft_s) for _ in range(1000)]
    assert sum(1 for one in asked if one) <= 8, "it looks again now and then, ever more seldom"
    assert any(asked)


def test_a_line_is_fitted_and_follows_a_change() -> None:
    line = CostLine()
    for tokens in [2, 4, 6] * 20:
        line.add(tokens, 0.001 + 0.002 * tokens)
    assert line.at(5) == pytest.approx(0.011, rel=0.01)
    for tokens in [2, 4, 6] * 40:
        line.add(tokens, 0.020 + 0.001 * tokens)
    assert line.at(5) == pytest.approx(0.025, rel=0.05)


def test_one_length_alone_still_tells_short_from_long() -> None:
    line = CostLine()
    for _ in range(10):
        line.add(4, 0.005)
    assert line.at(4) == pytest.approx(0.005)
    assert line.at(2) < 0.005 < line.at(6)


@given(
    acceptance=st.floats(0.05, 0.98),
    row_ms=st.floats(0.0, 1.0),
    way_ms=st.floats(0.0, 5.0),
    texts=st.integers(2, 32),
    processors=st.integers(1, 64),
)
def test_what_is_foretold_of_several_texts(
    acceptance: float, row_ms: float, way_ms: float, texts: int, processors: int
) -> None:
    """As the choice of a length expects it; a drafter on the same processors brings less."""
    cost = StepCost(((1, (1 + row_ms) / 1e3), (600, (1 + 600 * row_ms) / 1e3)))

    def foretold(shared: int = 0) -> float:
        return gain(acceptance, 8, cost, lambda tokens: way_ms / 1e3, texts, shared)

    length = DraftLength(Acceptance(prior=acceptance), trial=0)
    chosen = length.choose(8, cost, lambda tokens: way_ms / 1e3, texts=texts)
    assume(abs(foretold() - 1) > 1e-9)  # nor do rounded numbers say which is more
    assert (foretold() > 1) is (chosen > 0)
    assert 0 < foretold(processors) <= foretold()
