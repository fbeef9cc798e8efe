"""Trees of guesses: the likeliest first, as many as pay, trusted as far as they were right."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from common.model.adjust import adjust
from common.model.output import Computed
from common.model.row import Row
from common.model.sampling import sample
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.cost import StepCost
from verifier.methods.medusa import RANKS, MedusaProposer, _adjust_few, _adjust_whole
from verifier.proposer import Outcome
from verifier.sequence import Sequence

FREE = StepCost()
DEAR = StepCost(((1, 0.001), (64, 0.064)))


@dataclass
class Heads:
    """Heads that always say the same: head h, rank r guesses token 100 h + r."""

    chances: Seq[Seq[float]]
    tree: tuple[tuple[int, ...], ...] | None = None
    chosen: list[int] = field(default_factory=list)
    """Of each state that it was run for."""
    runs: int = 0

    @property
    def num_heads(self) -> int:
        return len(self.chances)

    def logits(self, hidden: Tensor, chosen: Seq[int]) -> Tensor:
        self.runs += 1
        self.chosen += chosen
        return torch.zeros(self.num_heads, len(hidden), 0)

    def top(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        ids = torch.tensor(
            [[100 * head + rank for rank in range(k)] for head in range(self.num_heads)]
        )
        padded = [(list(line) + [0.0] * k)[:k] for line in self.chances]
        rows = logits.shape[1]
        return ids[:, None].repeat(1, rows, 1), torch.tensor(padded)[:, None].repeat(1, rows, 1)


def _proposer(heads: Heads, cost: StepCost, most: int = 16, static: bool = False) -> MedusaProposer:
    return MedusaProposer(heads, cost, most, static=static)  # type: ignore[arg-type]


def _observe(
    proposer: MedusaProposer,
    one: Sequence,
    tree: TokenTree,
    accepted: Seq[int] = (),
    bonus: int | None = 7,
    *,
    wanted: bool = True,
) -> None:
    ids = [tree.ids[node] for node in accepted]
    ids += [] if bonus is None else [bonus]
    one.commit(ids)
    output = Computed(logits=torch.zeros(1, 0), states=torch.zeros(1, 4))
    outcome = Outcome(
        tree=tree, choices=(), accepted=accepted, ids=ids, output=output, wanted=wanted
    )
    proposer.observe(one, outcome)


def _tree(proposer: MedusaProposer, one: Sequence, budget: int = 64) -> TokenTree:
    tree = TokenTree(one.ids[-1])
    proposer.propose(one, tree, budget)
    return tree


def _paths(tree: TokenTree) -> list[list[int]]:
    return [[tree.ids[n] for n in tree.path(node)] for node in range(1, len(tree))]


def test_nodes_come_in_the_order_of_joint_confidence() -> None:
    proposer, one = _proposer(Heads([[0.6, 0.35], [0.5, 0.4]]), FREE, most=4), sequence([5], 50)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    assert _paths(_tree(proposer, one)) == [[0], [1], [0, 100], [0, 101]]


def test_without_a_state_there_is_nothing_to_guess_from() -> None:
    proposer, one = _proposer(Heads([[0.9]]), FREE), sequence([5], 50)
    proposer.open(one)
    assert len(_tree(proposer, one)) == 1


@pytest.mark.parametrize(
    ("budget", "asked", "nodes"), [(64, 0, 16), (3, 0, 3), (64, 5, 5), (0, 5, 0)]
)
def test_no_more_nodes_than_allowed(budget: int, asked: int, nodes: int) -> None:
    proposer = _proposer(Heads([[0.2] * RANKS] * 3), FREE)
    one = sequence([5], 50, draft_tokens=asked)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    assert len(_tree(proposer, one, budget)) == nodes + 1


def test_where_rows_cost_only_likely_nodes_are_checked() -> None:
    """A row costs as much as a step: a guess must come true with near certainty."""
    one = sequence([5], 50)
    for chance, nodes in ((0.99, 2), (0.5, 1)):  # one is always tried, or nothing would be learnt
        proposer = _proposer(Heads([[chance], [chance]]), StepCost(((1, 1.0), (64, 1.9))))
        dear = _proposer(Heads([[chance], [chance]]), DEAR)
        for each in (proposer, dear):
            each.open(one)
            _observe(each, one, TokenTree(one.ids[-1]))
        assert len(_tree(proposer, one)) - 1 >= nodes
        assert len(_tree(dear, one)) - 1 == 1


def test_heads_that_overrate_themselves_are_trusted_less() -> None:
    """Half of what the first head is sure of is wrong; what it says weighs half in the end."""
    proposer, one = _proposer(Heads([[0.9, 0.05], [0.9, 0.05]]), FREE, most=2), sequence([5], 5000)
    proposer.open(one)
    tree = TokenTree(5)
    for index in range(400):
        _observe(proposer, one, tree, accepted=[1] if index % 2 and len(tree) > 1 else [])
        tree = _tree(proposer, one)
    assert proposer._trusts.factors[0] == pytest.approx(0.55, abs=0.1)


def test_heads_run_once_for_all_sequences() -> None:
    heads = Heads([[0.9]])
    proposer = _proposer(heads, FREE)
    many = [sequence([5], 50) for _ in range(5)]
    for number, one in enumerate(many):
        proposer.open(one)
        _observe(proposer, one, TokenTree(5), bonus=number)
    for one in many:
        assert len(_tree(proposer, one)) > 1
    assert heads.runs == 1
    assert heads.chosen == [0, 1, 2, 3, 4], "each state's own token"


def test_where_no_guesses_are_wanted_the_last_ones_are_gone() -> None:
    heads = Heads([[0.9]])
    proposer, one = _proposer(heads, FREE), sequence([5], 50)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    _observe(proposer, one, _tree(proposer, one), wanted=False)
    assert len(_tree(proposer, one)) == 1
    assert heads.runs == 1


def test_heads_do_not_run_for_a_text_that_is_over() -> None:
    heads = Heads([[0.9]])
    proposer, one, other = _proposer(heads, FREE), sequence([5], 50), sequence([5], 50)
    for number, each in enumerate((one, other)):
        proposer.open(each)
        _observe(proposer, each, TokenTree(5), bonus=number)
    proposer.close(one)
    _tree(proposer, other)
    assert heads.chosen == [1]


def test_a_static_tree_is_laid_as_it_came() -> None:
    heads = Heads([[0.5, 0.2], [0.5, 0.2]], tree=((0,), (0, 0), (1,), (0, 1)))
    proposer, one = _proposer(heads, DEAR, static=True), sequence([5], 50)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    assert _paths(_tree(proposer, one)) == [[0], [1], [0, 100], [0, 101]]


def test_a_round_that_checked_another_tree_teaches_nothing() -> None:
    proposer, one = _proposer(Heads([[0.9]]), FREE), sequence([5], 50)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    _tree(proposer, one)
    before = proposer._trusts.factors[0]
    _observe(proposer, one, TokenTree(one.ids[-1]))
    assert proposer._trusts.factors[0] == before


def test_what_stands_behind_a_text_s_end_teaches_nothing() -> None:
    proposer, one = _proposer(Heads([[0.9], [0.9], [0.9]]), FREE), sequence([5], 50)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    tree = _tree(proposer, one)
    before = proposer._trusts.factors
    _observe(proposer, one, tree, tree.path(len(tree) - 1)[:2], bonus=None)
    after = proposer._trusts.factors
    assert [new != old for new, old in zip(after, before, strict=True)] == [True, True, False]


@dataclass
class Sure(Heads):
    """Heads that are right about the target: these logits come out of it for every later token."""

    logits_: Tensor = field(default_factory=lambda: torch.zeros(0))  # [heads, V]
    ranked: Tensor | None = None  # what `top` was last given

    def logits(self, hidden: Tensor, chosen: Seq[int]) -> Tensor:
        return self.logits_[:, None].repeat(1, len(hidden), 1)

    def top(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.ranked = logits
        chances, ids = logits.softmax(-1).topk(k)
        return ids, chances


VOCAB, DEPTH = 50, 3


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.7}])
def test_guesses_are_drawn_with_the_noise_of_the_text(cut: dict[str, float]) -> None:
    """Each at its own position; so heads that are right guess what will be drawn."""
    logits = 2 * torch.randn(DEPTH, VOCAB, generator=torch.Generator().manual_seed(3))
    every = RANKS + RANKS**2 + RANKS**3
    proposer = _proposer(Sure([[0.0]] * DEPTH, logits_=logits), FREE, most=every)
    for seed in range(40):
        sampling = SamplingParams(temperature=0.9, seed=seed, **cut)  # type: ignore[arg-type]
        one = sequence([5, 6], 50, sampling=sampling)
        proposer.open(one)
        _observe(proposer, one, TokenTree(6))
        rows = [Row(sampling, len(one.ids) + depth) for depth in range(DEPTH)]
        drawn = sample(logits, rows).tolist()
        paths = _paths(_tree(proposer, one, every))
        assert paths[0] == drawn[:1], "the likeliest guess of all"
        assert drawn in paths
        if "top_k" in cut:
            allowed = [set(line.topk(2).indices.tolist()) for line in logits]
            assert all(token in allowed[at] for path in paths for at, token in enumerate(path))
        proposer.close(one)


@pytest.mark.parametrize(
    ("temperature", "acceptance"), [(0.0, "coupled"), (0.9, "rejection"), (0.9, "typical")]
)
def test_where_noise_does_not_decide_guesses_have_none(temperature: float, acceptance: str) -> None:
    logits = 2 * torch.randn(DEPTH, VOCAB, generator=torch.Generator().manual_seed(3))
    proposer = _proposer(Sure([[0.0]] * DEPTH, logits_=logits), FREE)
    first = set()
    for seed in range(10):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        one = sequence([5, 6], 50, sampling=sampling, acceptance=acceptance)
        proposer.open(one)
        _observe(proposer, one, TokenTree(6))
        first.add(_paths(_tree(proposer, one))[0][0])
        proposer.close(one)
    assert first == {int(logits[0].argmax())}


@pytest.mark.parametrize(
    ("temperature", "acceptance"), [(0.0, "coupled"), (0.9, "rejection"), (0.9, "typical")]
)
def test_a_bias_and_a_penalty_come_before_guesses_without_noise(
    temperature: float, acceptance: str
) -> None:
    logits = 2 * torch.randn(DEPTH, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[:, 6] = 9.0  # the likeliest by far, and in the prompt
    proposer = _proposer(Sure([[0.0]] * DEPTH, logits_=logits), FREE, most=1)
    wanted, made = [], []
    for change in ({"logit_bias": {6: -100.0}}, {"repetition_penalty": 50.0}, {}):
        sampling = SamplingParams(temperature=temperature, **change)  # type: ignore[arg-type]
        one = sequence([5, 6], 50, sampling=sampling, acceptance=acceptance)
        one.watch_ids(VOCAB, torch.device("cpu"))
        proposer.open(one)
        _observe(proposer, one, TokenTree(6))
        row = Row(sampling, len(one.ids), one.seen)
        wanted.append(int(adjust(logits[:1], [row]).argmax()))
        made.append(one)
    assert wanted[0] != 6 != wanted[1]
    assert wanted[2] == 6
    assert [_paths(_tree(proposer, one))[0][0] for one in made] == wanted


def test_every_head_has_the_bias_and_penalty_of_its_text_alone() -> None:
    logits = 2 * torch.randn(DEPTH, VOCAB, generator=torch.Generator().manual_seed(3))
    heads = Sure([[0.0]] * DEPTH, logits_=logits)
    proposer, wanted = _proposer(heads, FREE), []
    for change in ({}, {"logit_bias": {6: -3.0, 9: 2.0}, "repetition_penalty": 1.3}):
        one = sequence([5, 6], 50, sampling=SamplingParams(temperature=0.0, **change))  # type: ignore[arg-type]
        one.watch_ids(VOCAB, torch.device("cpu"))
        proposer.open(one)
        _observe(proposer, one, TokenTree(6))
        rows = [Row(one.request.sampling, len(one.ids) + head, one.seen) for head in range(DEPTH)]
        wanted.append(adjust(logits, rows))
    _tree(proposer, one)
    assert heads.ranked is not None
    assert torch.allclose(heads.ranked, torch.stack(wanted, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_lines_of_all_texts_are_adjusted_as_few_ids_of_each(dtype: torch.dtype) -> None:
    """Bit for bit; where logits are of 16 bits, rounded once rather than twice."""
    changes: list[dict[str, object]] = [
        {"logit_bias": {6: -3.0, 9: 2.0}},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7, "logit_bias": {5: 1.0}},
        {"repetition_penalty": 1.3},
    ]
    texts = []
    for number, change in enumerate(changes):
        sampling = SamplingParams(temperature=0.0, **change)  # type: ignore[arg-type]
        texts.append(sequence([5, 6 + number], 50, sampling=sampling))
        texts[-1].watch_ids(VOCAB, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    every = (2 * torch.randn(DEPTH, 1 + len(texts), VOCAB, generator=generator)).to(dtype)
    few, whole = every.clone(), every.clone()
    for index, one in enumerate(texts, 1):
        _adjust_few(few[:, index], one)
    _adjust_whole(whole[:, 1:], texts)
    assert not torch.equal(whole, every)
    off = {"rtol": 0.0, "atol": 0.0} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-6}
    torch.testing.assert_close(whole, few, **off)


def test_greedy_and_drawn_texts_are_guessed_for_at_once() -> None:
    logits = 2 * torch.randn(DEPTH, VOCAB, generator=torch.Generator().manual_seed(3))
    heads = Sure([[0.0]] * DEPTH, logits_=logits)
    proposer, wanted, made = _proposer(heads, FREE), [], []
    for seed, temperature in enumerate([0.9, 0.0, 1.1, 0.0, 0.5]):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        one = sequence([5] * (1 + seed), 50, sampling=sampling)
        proposer.open(one)
        _observe(proposer, one, TokenTree(5))
        wanted.append(int(sample(logits[:1], [Row(sampling, len(one.ids))])[0]))
        made.append(one)
    assert [_paths(_tree(proposer, one))[0][0] for one in made] == wanted
    assert heads.ranked is not None
    assert heads.ranked.shape[1] == 2, "of the greedy ones alone"


def test_a_static_tree_has_no_nodes_that_warpers_cut() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3))
    heads = Sure([[0.0]] * 2, tree=((0,), (0, 0), (1,), (0, 1)), logits_=logits)
    sampling = SamplingParams(temperature=0.9, top_k=1)
    proposer, one = _proposer(heads, DEAR, static=True), sequence([5], 50, sampling=sampling)
    proposer.open(one)
    _observe(proposer, one, TokenTree(5))
    best = logits.argmax(-1).tolist()
    assert _paths(_tree(proposer, one)) == [best[:1], best]
