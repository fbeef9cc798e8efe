"""Trees of a head that goes on by itself: the likeliest first, drawn as the text is, and trusted as
far as they were right."""

from __future__ import annotations

import pytest
import torch

from common.model.adjust import adjust
from common.model.drafting_head import Guessed
from common.model.row import Row
from common.model.sampling import sample
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests.unit.verifier.methods.fake_eagle import VOCAB, FakeHead, Lines, paths, said
from tests.unit.verifier.texts import broken
from verifier.cost import StepCost
from verifier.methods.eagle import EagleProposer

pytestmark = pytest.mark.usefixtures("still")

FREE = StepCost()
DEAR = StepCost(((1, 0.001), (64, 0.064)))
SOME = torch.tensor([3, 6, 7, 11, 19, 23, 31, 42])


class Ranking(FakeHead):
    """Counts rows of which the likeliest tokens were looked for, call by call."""

    def __init__(self, logits: torch.Tensor, ids: torch.Tensor | None) -> None:
        super().__init__(logits, ids)
        self.ranked: list[int] = []

    def top(self, logits: torch.Tensor, k: int) -> Guessed:
        self.ranked.append(len(logits))
        return super().top(logits, k)


def _lines(head: FakeHead, cost: StepCost = FREE, most: int = 16) -> Lines:
    return Lines(EagleProposer(head, cost, most))


def _noisy(depths: int, width: int = VOCAB) -> torch.Tensor:
    return 2 * torch.randn(depths, width, generator=torch.Generator().manual_seed(3))


def test_nodes_come_in_the_order_of_joint_chance() -> None:
    lines = _lines(FakeHead(said([0.6, 0.35], [0.5, 0.4])), most=4)
    one = lines.text([5])
    lines.end(one)
    assert paths(lines.tree(one)) == [[0], [1], [0, 0], [0, 1]]


def test_without_a_state_there_is_nothing_to_guess_from() -> None:
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    assert len(lines.tree(lines.text([5]))) == 1
    assert head.drafts == []


@pytest.mark.parametrize(
    ("budget", "asked", "nodes"), [(64, 0, 16), (3, 0, 3), (64, 5, 5), (0, 5, 0)]
)
def test_no_more_nodes_than_allowed(budget: int, asked: int, nodes: int) -> None:
    lines = _lines(FakeHead(said([0.4, 0.3, 0.2])))
    one = lines.text([5], draft_tokens=asked)
    lines.end(one)
    tree = lines.tree(one, budget)
    assert len(tree) == nodes + 1
    assert max(tree.depths) <= (asked or nodes)


def test_no_guess_is_deeper_than_the_text_has_room_for() -> None:
    lines = _lines(FakeHead(said([1.0])))
    one = lines.text([5], 5)
    lines.end(one)
    tree = lines.tree(one)
    assert max(tree.depths) == one.room - 1 == 3


def test_where_rows_cost_only_likely_nodes_are_checked() -> None:
    """A row costs as much as a step: a guess must come true with near certainty."""
    lines = _lines(FakeHead(said([0.5])), DEAR)
    one = lines.text([5])
    lines.end(one)
    assert len(lines.tree(one)) == 2, "one is tried, or nothing would be learnt"
    lines.end(one)
    assert len(lines.tree(one)) == 1


def test_now_and_then_one_that_does_not_pay_is_tried() -> None:
    lines = _lines(FakeHead(said([0.3])), DEAR, most=1)
    tried = 0
    for _ in range(4):
        one = lines.text([5, 5], 14)
        for _ in range(12):
            lines.end(one)
            tried += len(lines.tree(one)) - 1
        lines.proposer.close(one)
    assert tried == 4


def test_a_head_that_overrates_itself_is_trusted_less() -> None:
    """Half of what it is sure of is wrong; what it says weighs half in the end."""
    lines = _lines(FakeHead(said([0.9, 0.05])), most=1)
    for number in range(60):
        one = lines.text([5], 8)
        lines.end(one)
        for index in range(4):
            tree = lines.tree(one)
            lines.end(one, tree, [1] if (index + number) % 2 and len(tree) > 1 else [])
        lines.proposer.close(one)
    assert lines.proposer._trusts.factors[0] == pytest.approx(0.55, abs=0.1)


def test_a_head_runs_once_for_all_texts() -> None:
    head = FakeHead(said([0.9], [0.0]))
    lines = _lines(head)
    many = [lines.text([5] * (1 + number)) for number in range(5)]
    for number, one in enumerate(many):
        lines.end(one, bonus=number)
    for one in many:
        assert len(lines.tree(one)) > 1
    (texts,) = head.drafts
    assert [text.tokens[-1] for text in texts] == [0, 1, 2, 3, 4], "each state's own token"
    assert [text.end for text in texts] == [1, 2, 3, 4, 5]


def test_a_text_that_wants_no_draft_has_the_head_draft_for_nobody() -> None:
    """Nor do those that have theirs look at everybody's once more."""
    head = FakeHead(said([0.9], [0.0]))
    lines = _lines(head)
    one, other, third = (lines.text([5, 6]) for _ in range(3))
    lines.end(one, wanted=False)
    lines.end(other)
    lines.end(third)
    assert len(lines.tree(one)) == 1
    assert head.drafts == []
    assert len(lines.tree(other)) > 1
    assert [len(texts) for texts in head.drafts] == [2]
    lines.proposer._guess = broken  # type: ignore[method-assign]
    assert len(lines.tree(third)) > 1


def test_where_no_guesses_are_wanted_the_last_ones_are_gone() -> None:
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one = lines.text([5])
    lines.end(one)
    lines.end(one, lines.tree(one), wanted=False)
    assert len(lines.tree(one)) == 1
    assert len(head.drafts) == 1


@pytest.mark.parametrize("over", ["closed", "finished"])
def test_a_text_that_is_over_is_not_guessed_for(over: str) -> None:
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one, other = (lines.text([5], tokens) for tokens in (1 if over == "finished" else 9, 9))
    for number, each in enumerate((one, other)):
        lines.end(each, bonus=number)
    if over == "closed":
        lines.proposer.close(one)
    lines.tree(other)
    assert [[text.tokens[-1] for text in texts] for texts in head.drafts] == [[1]]


def test_a_round_that_checked_another_tree_teaches_nothing() -> None:
    lines = _lines(FakeHead(said([0.9])))
    one = lines.text([5])
    lines.end(one)
    lines.tree(one)
    before = lines.proposer._trusts.factors
    lines.end(one, TokenTree(one.ids[-1]))
    assert lines.proposer._trusts.factors == before


def test_what_stands_behind_a_text_s_end_teaches_nothing() -> None:
    lines = _lines(FakeHead(said([0.9])), most=3)
    one = lines.text([5])
    lines.end(one)
    tree = lines.tree(one)
    lines.end(one, tree, tree.path(len(tree) - 1)[:2], bonus=None)
    factors = lines.proposer._trusts.factors
    assert [factor != 1 for factor in factors[:4]] == [True, True, False, False]


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.7}])
@pytest.mark.parametrize("some", [False, True])
def test_guesses_are_drawn_with_the_noise_of_the_text(cut: dict[str, float], some: bool) -> None:
    """Each at its own position; so a head that is right guesses what will be drawn, first."""
    ids = SOME if some else None
    logits = _noisy(3, len(SOME) if some else VOCAB)
    lines, deepest = _lines(FakeHead(logits, ids), most=200), 0
    wide = lines.proposer._head.spread(logits)
    for seed in range(40):
        sampling = SamplingParams(temperature=0.9, seed=seed, **cut)  # type: ignore[arg-type]
        one = lines.text([5, 6], 4, sampling=sampling)
        lines.end(one, bonus=6)
        drawn = sample(wide, [Row(sampling, len(one.ids) + at) for at in range(3)]).tolist()
        tree, node = lines.tree(one), 0
        for depth, token in enumerate(drawn):
            below = [child for child in range(1, len(tree)) if tree.parents[child] == node]
            if below:
                assert tree.ids[below[0]] == token
                node, deepest = below[0], max(deepest, depth)
        if "top_k" in cut:
            allowed = [set(line.topk(2).indices.tolist()) for line in wide]
            found = ((at, token) for path in paths(tree) for at, token in enumerate(path))
            assert all(token in allowed[min(at, 2)] for at, token in found)
        lines.proposer.close(one)
    assert deepest > 0


@pytest.mark.parametrize(
    ("temperature", "acceptance"), [(0.0, "coupled"), (0.9, "rejection"), (0.9, "typical")]
)
def test_where_noise_does_not_decide_guesses_have_none(temperature: float, acceptance: str) -> None:
    logits = _noisy(1)
    lines, first = _lines(FakeHead(logits)), set()
    for seed in range(10):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        one = lines.text([5, 6], sampling=sampling, acceptance=acceptance)
        lines.end(one)
        first.add(paths(lines.tree(one))[0][0])
    assert first == {int(logits.argmax())}


@pytest.mark.parametrize(
    ("temperature", "acceptance"), [(0.0, "coupled"), (0.9, "rejection"), (0.9, "typical")]
)
@pytest.mark.parametrize("some", [False, True])
def test_a_bias_and_a_penalty_come_before_guesses_without_noise(
    temperature: float, acceptance: str, some: bool
) -> None:
    """Of texts side by side each has its own."""
    logits = _noisy(1, len(SOME) if some else VOCAB)
    likely = int(SOME[1]) if some else 6
    logits[:, 1 if some else 6] = 9.0  # the likeliest by far, and in the prompt
    lines = _lines(FakeHead(logits, SOME if some else None), most=1)
    wide, wanted, made = lines.proposer._head.spread(logits), [], []
    for change in ({"logit_bias": {likely: -100.0}}, {"repetition_penalty": 50.0}, {}):
        sampling = SamplingParams(temperature=temperature, **change)
        one = lines.text([5, likely], sampling=sampling, acceptance=acceptance)
        lines.end(one, bonus=5)
        row = Row(sampling, len(one.ids), one.seen)
        wanted.append(int(adjust(wide.clone(), [row]).argmax()))
        made.append(one)
    assert wanted[0] != likely != wanted[1]
    assert wanted[2] == likely
    assert [paths(lines.tree(one))[0][0] for one in made] == wanted


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("temperatures", [[0.9, 0.0, 1.1, 0.0, 0.5, 0.0, 0.7], [0.9, 1.1], [0.0]])
def test_greedy_and_drawn_texts_are_guessed_for_at_once(
    temperatures: list[float], some: bool
) -> None:
    """Each with its own bias and penalty; the likeliest are looked for of greedy ones alone."""
    ids = SOME if some else None
    head = Ranking(_noisy(1, len(SOME) if some else VOCAB), ids)
    lines, wanted, made = _lines(head), [], []
    wide = lines.proposer._head.spread(head.logits)
    for seed, temperature in enumerate(temperatures):
        change = {"logit_bias": {7: 1.5}, "repetition_penalty": 1.8} if seed % 3 == 1 else {}
        sampling = SamplingParams(temperature=temperature, seed=seed, **change)  # type: ignore[arg-type]
        one = lines.text([5, 7, 19] * (1 + seed), 9, sampling=sampling)
        lines.end(one)
        wanted.append(int(sample(wide, [Row(sampling, len(one.ids), one.seen)])[0]))
        made.append(one)
    assert [paths(lines.tree(one))[0][0] for one in made] == wanted
    greedy = temperatures.count(0.0)
    assert head.ranked[:1] == ([greedy] if greedy else [])
