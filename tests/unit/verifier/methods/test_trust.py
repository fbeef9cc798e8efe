"""How far guesses are trusted: as far as they were right, at every depth and for every text."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.methods.trust import Trust, Trusts, chances_of, draws
from verifier.proposer import Outcome


def _outcome(tree: TokenTree, accepted: Seq[int], *, ended: bool = False) -> Outcome:
    ids = [tree.ids[node] for node in accepted]
    return Outcome(
        tree=tree, choices=(), accepted=accepted, ids=ids if ended else [*ids, 9], wanted=True
    )


@pytest.mark.parametrize(("said", "right"), [(0.9, 0.45), (0.5, 0.5), (0.2, 0.6)])
def test_a_factor_becomes_what_is_right_over_what_is_said(said: float, right: float) -> None:
    trust, draw = Trust(), random.Random(0)
    for _ in range(2000):
        trust.observe(said, int(draw.random() < right))
    assert trust.factor == pytest.approx(right / said, rel=0.25)


def test_a_few_guesses_do_not_change_much() -> None:
    trust = Trust(0.8)
    assert trust.factor == pytest.approx(0.8)
    trust.observe(1.0, 0)
    assert 0.6 < trust.factor < 0.8


def test_only_guesses_below_what_was_accepted_are_learnt_from() -> None:
    """Of those nobody knows whether they are right whose parent is not."""
    trusts, tree = Trusts(3), TokenTree(5)
    first, beside = tree.add(0, 1), tree.add(0, 2)
    below, aside = tree.add(first, 3), tree.add(beside, 4)
    last = tree.add(below, 6)
    chances = {first: 0.6, beside: 0.3, below: 0.5, aside: 0.9, last: 0.4}
    trusts.learn(_outcome(tree, [first]), chances)
    one, two, three = (Trust() for _ in range(3))
    one.observe(0.6 + 0.3, 1)
    two.observe(0.5, 0)
    assert trusts.factors == [one.factor, two.factor, three.factor]


def test_nodes_of_others_teach_nothing() -> None:
    trusts, tree = Trusts(2), TokenTree(5)
    mine, other = tree.add(0, 1), tree.add(0, 2)
    trusts.learn(_outcome(tree, [other]), {mine: 0.7})
    wanted = Trust()
    wanted.observe(0.7, 0)
    assert trusts.factors == [wanted.factor, 1.0]


@pytest.mark.parametrize("ended", [False, True])
def test_behind_a_text_s_end_nothing_is_known(ended: bool) -> None:
    trusts, tree = Trusts(2), TokenTree(5)
    first = tree.add(0, 1)
    below = tree.add(first, 2)
    trusts.learn(_outcome(tree, [first], ended=ended), {first: 0.5, below: 0.5})
    assert trusts.factors[0] > 1
    assert (trusts.factors[1] < 1) == (not ended)


def test_what_is_no_longer_guessed_is_trusted_again_in_time() -> None:
    """Else what was wrong in some texts would never be guessed again in any."""
    trusts, tree = Trusts(2), TokenTree(5)
    first = tree.add(0, 1)
    second = tree.add(first, 2)
    for _ in range(20):
        trusts.learn(_outcome(tree, [first]), {first: 0.9, second: 0.9})
    lost = trusts.factors[1]
    trusts.learn(_outcome(tree, []), {first: 0.9, second: 0.9})
    assert trusts.factors[1] == lost < 0.3, "it was guessed, behind what was wrong"
    for _ in range(500):
        trusts.learn(_outcome(tree, [first]), {first: 0.9})
    assert 0.4 < trusts.factors[1] < 0.8


def test_a_text_begins_with_what_all_have_taught_and_teaches_them() -> None:
    everybody, tree = Trusts(2), TokenTree(5)
    node = tree.add(0, 1)
    before = Trusts(2, everybody)
    for _ in range(50):
        before.learn(_outcome(tree, []), {node: 0.9})
    assert everybody.factors[0] < 0.2
    assert everybody.factors[1] == 1
    after = Trusts(2, everybody)
    assert after.factors == pytest.approx(everybody.factors)
    after.learn(_outcome(tree, [node]), {node: 0.9})
    assert after.factors[0] > everybody.factors[0] > before.factors[0]


@pytest.mark.parametrize(
    ("temperature", "acceptance", "noise"),
    [
        (0.9, "coupled", True),
        (0.0, "coupled", False),
        (0.9, "rejection", False),
        (0.9, "typical", False),
    ],
)
def test_noise_decides_where_the_target_s_own_is_drawn(
    temperature: float, acceptance: str, noise: bool
) -> None:
    sampling = SamplingParams(temperature=temperature)
    assert draws(sequence([5], 5, sampling=sampling, acceptance=acceptance)) == noise


@given(
    gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=6).map(sorted),
    temperature=st.floats(0.01, 3),
)
def test_chances_of_scores(gaps: list[float], temperature: float) -> None:
    """Add up to 1, and fall with the scores; flatter where the temperature is low, and never
    sharper than scores are."""
    gaps = [gap - gaps[0] for gap in gaps]
    chances = chances_of(gaps, temperature)
    assert math.fsum(chances) == pytest.approx(1)
    assert chances == sorted(chances, reverse=True)
    for gap, chance in zip(gaps, chances, strict=True):
        odds = math.exp(-min(temperature, 1.0) * gap)
        assert chance == pytest.approx(odds * chances[0])
