"""When another proposer is asked for drafts, and what it and those who decide hear."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common.model.tree import TokenTree
from tests.unit.verifier.methods.scripted_target import NO_OUTPUT, sequence
from verifier.cost import StepCost
from verifier.gates import gated
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.gates.gated import GatedProposer
from verifier.gates.solo import Solo
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence
from verifier.totals import Totals


class Inner(Proposer):
    """Is never ready, and drafts so many tokens whenever it is asked."""

    def __init__(self) -> None:
        self.nodes = 1
        self.wanted: list[bool] = []

    def ready(self, sequence: Sequence, now: float) -> bool:
        return False

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        for token in range(self.nodes):
            tree.add(0, token)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        self.wanted.append(outcome.wanted)


@dataclass
class Parts:
    """A gated proposer and what it hangs on; gate and solo say what they are told to."""

    method: GatedProposer
    inner: Inner
    gate: Mock
    solo: Mock

    def propose(self, one: Sequence) -> TokenTree:
        tree = TokenTree(9)
        self.method.propose(one, tree, 4)
        return tree

    def observe(self, one: Sequence, ids: list[int], *, several: bool = False) -> None:
        output = None if several else NO_OUTPUT
        self.method.observe(one, Outcome(TokenTree(9), [0], [], ids, output))


def parts(
    patch: pytest.MonkeyPatch, sequences: int = 2, *, pays: bool = True, remote: bool = False
) -> Parts:
    """Of an engine with so many sequences, beside which drafts pay or do not."""
    inner, totals = Inner(), Totals()
    totals.sequences = sequences
    gate, solo = Mock(spec=Gate), Mock(spec=Solo, drafting=True)
    gate.drafting.return_value = pays
    patch.setattr(gated, "Gate", lambda crowd, first: gate)
    patch.setattr(gated, "Solo", lambda plain_s: solo)
    method = GatedProposer(inner, Crowd(totals), StepCost(), remote=remote)
    return Parts(method, inner, gate, solo)


@pytest.mark.parametrize("pays", [False, True])
def test_the_other_is_asked_where_drafts_pay(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "time", SimpleNamespace(monotonic=lambda: 8.0))
    each = parts(monkeypatch, 5, pays=pays)
    one = sequence([1], 9)
    for opened in (one, sequence([1], 9)):
        each.method.open(opened)
    assert each.method.ready(one, 7.0) is not pays
    assert each.method.rests(one) is not pays
    assert len(each.propose(one)) == 1 + pays
    each.observe(one, [1])
    each.observe(one, [1, 2], several=True)
    assert each.inner.wanted == [pays, False], "there is no state to draft from after a rest"
    asked = {call.args for call in each.gate.drafting.call_args_list}
    assert asked == {(2, 7.0), (2, 8.0)}, "for its own sequences, as a step begins and ends"


@pytest.mark.parametrize("nodes", [0, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_the_gate_hears_of_drafts_that_were_made(
    nodes: int, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of texts for which none was: those that are still to come are waited for."""
    each = parts(monkeypatch, remote=remote)
    each.inner.nodes = nodes
    each.method.open(one := sequence([1], 9))
    each.propose(one)
    assert each.gate.joined.call_count == (bool(nodes) or not remote)


def test_the_gate_hears_when_no_text_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    each = parts(monkeypatch)
    each.method.open(one := sequence([1], 9))
    each.method.open(other := sequence([1], 9))
    each.method.close(one)
    assert not each.gate.left.called
    each.method.close(other)
    assert each.gate.left.called


def test_who_asks_for_a_length_gets_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    each = parts(monkeypatch, pays=False)
    each.method.open(one := sequence([1], 9, draft_tokens=3))
    assert not each.method.rests(one)
    assert len(each.propose(one)) == 2


@pytest.mark.parametrize("sequences", [1, 2])
def test_of_one_alone_its_own_rounds_decide(
    sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, alone = parts(monkeypatch, sequences), sequences == 1
    each.method.open(one := sequence([1], 9))
    each.propose(one)
    each.observe(one, [1, 2])
    each.observe(one, [1])
    each.propose(one)
    each.observe(one, [1, 2, 3], several=True)
    told = [{"tokens": call.args[0]} | call.kwargs for call in each.solo.ended.call_args_list]
    assert told == [
        {"tokens": 2, "drafted": True, "alone": alone, "passes": 1},
        {"tokens": 1, "drafted": False, "alone": alone, "passes": 1},
        {"tokens": 3, "drafted": False, "alone": alone, "passes": 3},
    ]
    each.solo.drafting = False
    assert each.method.rests(one) is alone


def test_nothing_is_left_of_a_text_that_leaves_within_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = parts(monkeypatch)
    each.method.open(one := sequence([1], 9))
    each.propose(one)
    each.method.close(one)
    assert not each.method._asked
    assert not each.method._solos


def test_drafts_are_tried_first() -> None:
    totals = Totals()
    totals.sequences = 8
    method = GatedProposer(Inner(), Crowd(totals), StepCost())
    method.open(one := sequence([1], 9))
    assert not method.rests(one)
