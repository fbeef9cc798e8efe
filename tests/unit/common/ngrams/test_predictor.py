"""Predictions: likeliest first, measured, no more than pays, and compiled as in Python."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.ngrams.calibration import Calibration
from common.ngrams.contexts import Contexts
from common.ngrams.predictor import Predictor
from common.step_table import StepTable
from tests.unit.common.ngrams.kinds import IN_PYTHON, Kinds

FREE: StepTable = ((1, 1.0), (64, 1.0))
DEAR: StepTable = ((1, 1.0), (64, 64.0))
TEXT, SHARED, THEIRS = 1, 2, 3


@dataclass
class ByFirst:
    """A table for each first token, as pools have them."""

    tables: dict[int, Contexts]

    def table(self, first: int) -> Contexts | None:
        """See `Tables`."""
        return self.tables.get(first)


def by_first(kinds: Kinds, ids: list[int], tokens: int = 4) -> ByFirst:
    """The n-grams of a text."""
    tables: dict[int, Contexts] = {}
    for begin, first in enumerate(ids):
        tables.setdefault(first, kinds.contexts(1)).add_ngram(ids[begin : begin + tokens], 1.0)
    return ByFirst(tables)


def _predictor(
    kinds: Kinds, ids: list[int], steps: StepTable = FREE, others: list[int] | None = None
) -> Predictor:
    text = kinds.contexts(3)
    text.extend(ids, 0)
    shared = by_first(kinds, others or [])
    return kinds.predictor([(TEXT, text), (SHARED, shared)], 3, kinds.calibration(), steps)


def _paths(tokens: list[int], parents: list[int]) -> list[list[int]]:
    paths: list[list[int]] = []
    for parent, token in zip(parents, tokens, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(0, 5), min_size=2, max_size=80),
    most=st.integers(1, 20),
    line=st.lists(st.integers(0, 5), max_size=6),
)
def test_candidates_are_a_trie_by_falling_chance(
    kinds: Kinds, ids: list[int], most: int, line: list[int]
) -> None:
    tokens, parents, chances, worth = _predictor(kinds, ids).search(ids, most, line=line, agreed=8)
    assert worth <= len(tokens) <= most
    assert chances == sorted(chances, reverse=True)
    assert all(parent < index for index, parent in enumerate(parents))
    paths = _paths(tokens, parents)
    assert len({tuple(path) for path in paths}) == len(paths)
    for parent in {*parents}:
        above = chances[parent] if parent >= 0 else 1.0
        below = sum(chances[at] for at, other in enumerate(parents) if other == parent)
        assert below <= above * 1.5, "by trust's most"


def test_longer_contexts_are_believed_first(kinds: Kinds) -> None:
    ids = [1, 2, 3, 9, 2, 4, 9, 2, 4, 8, 2, 4, 1, 2]
    tokens, *_ = _predictor(kinds, ids).search(ids, 8)
    assert tokens[0] == 3, "after 1, 2; 4 is commoner after 2 alone"
    assert 4 in tokens


def test_a_long_match_comes_first_and_goes_on(kinds: Kinds) -> None:
    ids, predictor = [1, 2, 3, 4], _predictor(kinds, [1, 2, 3, 4])
    tokens, parents, *_ = predictor.search(ids, 6, line=[50, 51, 52, 53], agreed=30)
    assert _paths(tokens, parents)[:4] == [[50], [50, 51], [50, 51, 52], [50, 51, 52, 53]]


def _mislead(kinds: Kinds, calibration: Calibration) -> None:
    """Texts whose lines are wrong, until those with which as much agrees are believed no more."""
    for _ in range(400):
        other = kinds.predictor([(TEXT, kinds.contexts(3))], 3, calibration, FREE)
        other.search([1, 2, 3], 8, line=[9], agreed=8)
        other.learn([5])


def test_a_line_that_is_believed_no_more_is_tested_all_the_same(kinds: Kinds) -> None:
    calibration = kinds.calibration()
    _mislead(kinds, calibration)
    predictor = kinds.predictor([(TEXT, kinds.contexts(3))], 3, calibration, FREE)
    assert predictor.search([1, 2, 3], 8, line=[9], agreed=8)[0] == []
    for _ in range(100):
        predictor.learn([9])
        predictor.search([1, 2, 3], 8, line=[9], agreed=8)
    assert predictor.search([1, 2, 3], 8, line=[9], agreed=8)[0] == [9]


def test_counts_may_say_what_a_line_is_not_believed(kinds: Kinds) -> None:
    """And it goes on from there."""
    calibration, text = kinds.calibration(), kinds.contexts(3)
    _mislead(kinds, calibration)
    text.extend([1, 2, 3, 9, 7], 0)
    predictor = kinds.predictor([(TEXT, text)], 3, calibration, FREE)
    tokens, parents, *_ = predictor.search([1, 2, 3], 8, line=[9, 6], agreed=8)
    assert _paths(tokens, parents)[:2] == [[9], [9, 6]]


def test_nothing_is_worth_checking_where_rows_are_dear(kinds: Kinds) -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    assert _predictor(kinds, ids, DEAR).search(ids, 8)[3] == 0
    free = _predictor(kinds, ids)
    assert free.search(ids, 8)[3] > 0
    assert free.worth(2, 8) > 0


def test_one_source_goes_on_where_another_ends(kinds: Kinds) -> None:
    predictor = _predictor(kinds, [1, 2, 1], others=[2, 3, 4])
    tokens, parents, *_ = predictor.search([1, 2, 1], 10)
    assert [2, 3] in _paths(tokens, parents)


@pytest.mark.parametrize("seed", range(30))
def test_compiled_predictions_are_those_in_python(native: Kinds, seed: int) -> None:
    """Over rounds in which both learn, and calibrations that texts share."""
    draw = random.Random(seed)
    vocabulary, order = draw.choice([3, 6, 60]), draw.randrange(1, 6)
    steps = draw.choice([FREE, DEAR, ((1, 1.0), (4, 1.1), (8, 1.2), (64, 6.0))])
    calibrations = [kinds.calibration() for kinds in (native, IN_PYTHON)]
    for _ in range(3):
        ids = [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 60))]
        others = [draw.randrange(vocabulary) for _ in range(80)]
        texts, predictors = [], []
        for kinds, calibration in zip((native, IN_PYTHON), calibrations, strict=True):
            texts.append(kinds.contexts(order))
            texts[-1].extend(ids, 0)
            sources = [
                (TEXT, texts[-1]),
                (SHARED, by_first(kinds, others)),
                (THEIRS, by_first(kinds, others[::-1])),
            ]
            predictors.append(kinds.predictor(sources, order, calibration, steps))
        for _ in range(25):
            line = [draw.randrange(vocabulary) for _ in range(draw.randrange(5))]
            load = (draw.random() * 8, draw.random() * 8)
            most, agreed, nodes = draw.randrange(1, 20), draw.randrange(20), draw.randrange(9)
            fresh = [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 4))]
            one, other = (each.search(ids, most, load, line, agreed) for each in predictors)
            assert one[:2] == other[:2]
            assert one[2] == pytest.approx(other[2], rel=1e-9)
            assert one[3] == other[3]
            assert len({each.worth(nodes, most, load) for each in predictors}) == 1
            ids = ids + fresh
            for predictor, text in zip(predictors, texts, strict=True):
                predictor.learn(fresh)
                text.extend(ids, len(ids) - len(fresh))


def test_compiled_predictions_fall_and_rise_as_those_in_python(native: Kinds) -> None:
    """Beyond where they are believed no more, and back, to the last bit."""
    ids, predictors = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], []
    for kinds in (native, IN_PYTHON):
        text = kinds.contexts(3)
        text.extend(ids, 0)
        predictors.append(kinds.predictor([(TEXT, text)], 3, kinds.calibration(), FREE))
    most = []
    for token in [8] * 600 + [4] * 600:
        one, other = (each.search(ids, 12, line=[4, 6], agreed=12) for each in predictors)
        assert one == other
        for each in predictors:
            each.learn([token, 6])
        most.append(max(one[2], default=0.0))
    assert min(most) == 0.0
    assert most[-1] > 0.9


def test_counts_beyond_any_measure_predict_nothing(kinds: Kinds) -> None:
    """Sums of them are no numbers to divide by."""
    text = kinds.contexts(2)
    for token in range(3):
        text.add_ngram((7, token), 1.7e308)
    predictor = kinds.predictor([(TEXT, text)], 2, kinds.calibration(), FREE)
    assert predictor.search([7], 4)[0] == []
    assert predictor.search([7], 4, line=[5], agreed=-3)[0] == [5]


def test_an_error_of_a_table_is_passed_on(native: Kinds) -> None:
    class Broken:
        def table(self, first: int) -> Contexts | None:
            raise LookupError(f"no {first}")

    predictor = native.predictor([(SHARED, Broken())], 2, native.calibration(), FREE)
    with pytest.raises(LookupError, match="no 7"):
        predictor.search([7], 4)
    with pytest.raises(TypeError):
        predictor.search(None, 4)  # type: ignore[arg-type]


def test_the_compiled_one_says_what_it_can_take(native: Kinds) -> None:
    with pytest.raises(ValueError, match="at most 3 sources"):
        native.predictor([(1, native.contexts(1))] * 4, 2, native.calibration(), FREE)
    with pytest.raises(ValueError, match="an origin must be 1 to 3"):
        native.predictor([(4, native.contexts(1))], 2, native.calibration(), FREE)


def test_a_table_may_be_dropped_while_it_is_in_use(native: Kinds) -> None:
    """A cache that is full lets go of one table for another."""

    class Fleeting:
        def table(self, first: int) -> Contexts | None:
            made = native.contexts(1)
            made.add_ngram((first, first + 1, first + 2), 1.0)
            return made

    predictor = native.predictor([(SHARED, Fleeting())], 2, native.calibration(), FREE)
    assert predictor.search([1], 4)[0][:2] == [2, 3]
