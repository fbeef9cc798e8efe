"""Counts of what followed what."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.common.ngrams.kinds import IN_PYTHON, Kinds

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)
every_kind = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@every_kind
@given(ids=TEXTS, order=st.integers(1, 4), cut=st.integers(0, 60))
def test_counts_are_those_of_a_search(kinds: Kinds, ids: list[int], order: int, cut: int) -> None:
    """However the text came in pieces."""
    contexts = kinds.contexts(order)
    contexts.extend(ids[:cut], 0)
    contexts.extend(ids, min(cut, len(ids)))
    for length in range(1, order + 1):
        expected: dict[tuple[int, ...], Counter[int]] = {}
        for end in range(length, len(ids)):
            expected.setdefault(tuple(ids[end - length : end]), Counter())[ids[end]] += 1
        for context, counts in expected.items():
            assert contexts.followers(context) == counts
    assert contexts.followers((9,)) is None
    assert contexts.followers(tuple([0] * (order + 1))) is None
    assert contexts.followers([0] * 100) is None


def test_an_ngram_counts_after_all_that_is_before_it(kinds: Kinds) -> None:
    contexts = kinds.contexts(1)
    contexts.add_ngram((1, 2, 3), 2.5)
    contexts.add_ngram([1, 2, 4], 1.0)
    assert contexts.followers((1, 2)) == {3: 2.5, 4: 1.0}
    assert contexts.followers((1,)) == {2: 3.5}
    assert contexts.followers((2,)) is None
    assert len(contexts) == 2


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_weights_that_are_no_positive_numbers_count_for_nothing(
    kinds: Kinds, weight: float
) -> None:
    contexts = kinds.contexts(1)
    contexts.add_ngram((1, 2, 3), weight)
    assert len(contexts) == 0
    contexts.add_ngram((1, 2), 1.0)
    contexts.add_ngram((1, 2, 3), weight)
    assert contexts.followers((1,)) == {2: 1.0}


def test_the_longest_unused_contexts_go(kinds: Kinds) -> None:
    contexts = kinds.contexts(1, most=100)
    for token in range(1000):
        contexts.add([token], token + 1)
        assert contexts.followers((0,)) == {1: 1.0}, "asked for all the time"
        assert len(contexts) <= 200
    assert contexts.followers((500,)) is None
    assert contexts.followers((999,)) == {1000: 1.0}


def test_a_crowd_of_followers_keeps_the_common_ones(kinds: Kinds) -> None:
    contexts = kinds.contexts(1)
    for token in range(500):
        contexts.add([0], token)
        contexts.add([0], 1)
    followers = contexts.followers((0,))
    assert followers is not None
    assert len(followers) < 50
    assert max(followers, key=followers.__getitem__) == 1


@pytest.mark.parametrize("seed", range(20))
def test_compiled_counts_are_those_in_python(native: Kinds, seed: int) -> None:
    """Generations, crowds and their order among them."""
    draw = random.Random(seed)
    vocabulary, most = draw.choice([2, 40, 5000]), draw.choice([1, 7, 300])
    both = [kinds.contexts(3, most=most) for kinds in (native, IN_PYTHON)]
    ids = [draw.randrange(vocabulary) for _ in range(1500)]
    for start in range(0, len(ids), 50):
        for contexts in both:
            contexts.extend(ids[: start + 50], start)
            contexts.add_ngram(ids[start : start + 4], 0.25)
            contexts.add(ids[:start], ids[start])
        asked = tuple(ids[start + 10 : start + 10 + draw.randrange(1, 4)])
        one, other = (contexts.followers(asked) for contexts in both)
        assert one == other
        assert list(one or ()) == list(other or ()), "in the order they came in"
        assert len(both[0]) == len(both[1])


def test_what_makes_no_sense_is_refused_by_the_compiled_ones(native: Kinds) -> None:
    for order, most in ((0, 1), (33, 1), (1, 0)):
        with pytest.raises(ValueError, match="order must be 1 to 32 and most at least 1"):
            native.contexts(order, most)
    contexts = native.contexts(2)
    with pytest.raises(OverflowError, match="4294967296 is no token"):
        contexts.add([1], 1 << 32)
    with pytest.raises(ValueError, match="at most 33 tokens"):
        contexts.add_ngram(range(34), 1.0)
    with pytest.raises(TypeError):
        contexts.extend(["a", "b"], 0)  # type: ignore[list-item]
    assert len(contexts) == 0
