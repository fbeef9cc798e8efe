"""Prompt lookup: repeats are drafted, noise is not, and the text is the target's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.tree import TokenTree
from tests.unit.verifier.methods.scripted_target import NO_OUTPUT, follow, rounds, sequence
from verifier.cost import StepCost
from verifier.methods.ngram import NgramProposer
from verifier.pool.forecast import Forecaster
from verifier.proposer import Outcome

CPU = StepCost(((1, 3.2), (8, 4.3), (64, 14.0)))


def _passage(seed: int, tokens: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000) for _ in range(tokens)]


@pytest.mark.parametrize("exchanged", [0, 20])
def test_a_copy_of_the_prompt_is_drafted_by_the_chunk(exchanged: int) -> None:
    """As edits are: the prompt again, with every so manieth token another."""
    passage = _passage(0, 200)
    copy = [
        5000 + index if exchanged and index % exchanged == exchanged - 1 else token
        for index, token in enumerate(passage)
    ]
    prompt = [*passage, 1001]
    one = sequence(prompt, len(copy))
    done = list(rounds(NgramProposer(CPU, 24), follow([*prompt, *copy]), one))
    assert one.ids[201:] == copy
    assert len(done) < (40 if exchanged else 24)


def test_noise_is_soon_left_alone() -> None:
    noise = _passage(1, 600)
    one = sequence(noise[:100], 500)
    done = list(rounds(NgramProposer(CPU, 24), follow(noise), one))
    assert sum(len(each.tree) - 1 for each in done[100:]) < 0.3 * 400


def test_what_the_text_turns_to_is_noticed_without_trying() -> None:
    """After long noise the text starts to repeat itself."""
    noise = _passage(2, 300)
    text = [*noise, *(list(range(2000, 2010)) * 20)]
    one = sequence(text[:50], len(text) - 50)
    done = list(rounds(NgramProposer(CPU, 24), follow(text), one))
    assert one.ids == text
    assert sum(len(each.ids) for each in done[-10:]) > 60


@pytest.mark.parametrize(("missed", "budget"), [(False, 8), (True, 8), (False, 0)])
def test_what_a_look_was_worth_is_learned_where_it_was_checked(
    missed: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where there was no room for a look, nor where the text went on in between."""
    learned = []
    monkeypatch.setattr(Forecaster, "learn", lambda self, ids: learned.append(ids))
    proposer, one = NgramProposer(CPU, 24), sequence([1, 2, 3, 4] * 10, 50)
    proposer.open(one)
    tree = TokenTree(4)
    proposer.propose(one, tree, budget)
    assert (len(tree) > 1) == (budget > 0)
    if missed:
        one.commit([1, 2])
    one.commit([1])
    outcome = Outcome(tree=tree, choices=(), accepted=[], ids=[1], output=NO_OUTPUT)
    proposer.observe(one, outcome)
    assert learned == ([] if missed or not budget else [[1]])


@given(
    seed=st.integers(0, 1000),
    vocab=st.integers(1, 4),
    budget=st.integers(0, 6),
    asked=st.integers(0, 3),
    lose_every=st.integers(0, 3),
)
def test_any_text_comes_out_whatever_the_limits(
    seed: int, vocab: int, budget: int, asked: int, lose_every: int
) -> None:
    draw = random.Random(seed)
    text = [draw.randrange(vocab) for _ in range(60)]

    one = sequence(text[:5], 40, draft_tokens=asked)
    proposer = NgramProposer(CPU, 24)
    for each in rounds(proposer, follow(text), one, budget, lose_every=lose_every):
        assert each.tree.draft_tokens <= min(budget, asked or 24)
    assert one.ids == text[:45]
    assert not proposer._states
