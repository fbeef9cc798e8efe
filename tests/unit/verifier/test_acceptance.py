"""Rejection is lossless in distribution, typical acceptance is the paper's formula."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from common.model.distribution import Listed, Whole
from common.model.output import Computed
from common.model.row import Row
from common.model.sampling import sample
from common.model.tree import Drawn, TokenTree
from common.sampling_params import SamplingParams
from verifier.acceptance.base import Rule, Scores, weighed
from verifier.acceptance.coupled import Coupled
from verifier.acceptance.rejection import Rejection, _step
from verifier.acceptance.typical import Typical

VOCAB = 6
DRAWS = 3000
FALSE_ALARM = 1e-4
"""Chance that a sound rule fails one test; seeds are fixed, so it fails always or never. With 4000
draws a distribution that is off by 0.05 in total variation is caught with more than 99 %
probability (noncentral chi-square with up to 35 degrees of freedom)."""

Draft = Callable[[TokenTree, random.Random], None]

GENERATOR = np.random.default_rng(3)
FIRST = GENERATOR.normal(size=VOCAB)
SECOND = GENERATOR.normal(size=(VOCAB, VOCAB))
Q = np.array([0.4, 0.3, 0.2, 0.1])
Q_IDS = (1, 4, 2, 0)


def _draw(tree: TokenTree, parent: int, source: random.Random, banned: tuple[int, ...] = ()) -> int:
    """Draws a child from Q, those banned left out."""
    kept = [(token, chance) for token, chance in zip(Q_IDS, Q, strict=True) if token not in banned]
    total = sum(chance for _, chance in kept)
    drawn = Drawn(tuple(t for t, _ in kept), tuple(c / total for _, c in kept))
    token = source.choices(drawn.ids, drawn.probabilities)[0]
    return tree.draw(parent, token, drawn)


def _chain(tree: TokenTree, source: random.Random) -> None:
    _draw(tree, _draw(tree, 0, source), source)


def _siblings(tree: TokenTree, source: random.Random) -> None:
    """Three independent draws, which may be the same token, each with one below it."""
    for _ in range(3):
        _draw(tree, _draw(tree, 0, source), source)


def _distinct(tree: TokenTree, source: random.Random) -> None:
    """Draws without replacement: each from what the others left."""
    first = tree.ids[_draw(tree, 0, source)]
    _draw(tree, _draw(tree, 0, source, banned=(first,)), source)


def _mixed(tree: TokenTree, source: random.Random) -> None:
    """Guesses that nobody drew beside a draw, and below it."""
    tree.add(tree.add(0, 3), 1)
    tree.add(_draw(tree, 0, source), 5)


def _first_two(draft: Draft, params: dict[str, float]) -> list[tuple[int, int]]:
    """The first two tokens that come out of one or two rounds, by seed."""
    trees = [TokenTree(9) for _ in range(DRAWS)]
    for seed, tree in enumerate(trees):
        draft(tree, random.Random(seed))
    texts = _round(params, {seed: (tree, ()) for seed, tree in enumerate(trees)})
    short = {
        seed: (TokenTree(text[0]), tuple(text)) for seed, text in texts.items() if len(text) < 2
    }
    for seed, text in _round(params, short).items():
        texts[seed] += text
    return [(text[0], text[1]) for text in texts.values()]


def _round(
    params: dict[str, float], sequences: dict[int, tuple[TokenTree, tuple[int, ...]]]
) -> dict[int, list[int]]:
    """What a pass commits of sequences, by seed: each has a tree and the tokens before it."""
    lines, rows, firsts = list[np.ndarray](), list[Row](), list[int]()
    for seed, (tree, before) in sequences.items():
        sampling = SamplingParams(seed=seed, **params)  # type: ignore[arg-type]
        firsts.append(len(rows))
        for node in range(len(tree)):
            text = [*before, *(tree.ids[n] for n in tree.path(node))]
            lines.append(SECOND[text[0]] if text else FIRST)
            rows.append(Row(params=sampling, position=50 + len(text)))
    logits = torch.tensor(np.array(lines), dtype=torch.float32)
    choices, committed = sample(logits, rows).tolist(), dict[int, list[int]]()
    scores, rule = list[Scores](), Rejection()
    for first, (tree, _) in zip(firsts, sequences.values(), strict=True):
        own = slice(first, first + len(tree))
        scores.append(Scores(tree, choices[own], rows[own], output=_only(logits), first=first))
    for seed, one in zip(sequences, weighed(scores, [rule] * len(scores)), strict=True):
        accepted, last = rule(one)
        committed[seed] = [*(one.tree.ids[node] for node in accepted), last]
    return committed


def _wanted(params: dict[str, float]) -> np.ndarray:
    """Probability of each pair of tokens. # [V, V]"""
    first = _warped(FIRST, params)
    return np.array([first[token] * _warped(SECOND[token], params) for token in range(VOCAB)])


def _warped(logits: np.ndarray, params: dict[str, float]) -> np.ndarray:
    scores = logits / params["temperature"]
    if "top_k" in params:
        scores = np.where(scores >= np.sort(scores)[-int(params["top_k"])], scores, -np.inf)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    if "top_p" in params:
        order = np.argsort(-chances)
        before = chances[order].cumsum() - chances[order]
        chances[order[before >= params["top_p"]]] = 0
        chances /= chances.sum()
    result: np.ndarray = chances
    return result


@pytest.mark.parametrize(
    "params", [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 4, "top_p": 0.9}]
)
@pytest.mark.parametrize("draft", [_chain, _siblings, _distinct, _mixed])
def test_rejection_keeps_the_distribution(draft: Draft, params: dict[str, float]) -> None:
    seen = Counter(_first_two(draft, params))
    wanted = _wanted(params).reshape(-1) * DRAWS
    observed = np.array([seen[divmod(index, VOCAB)] for index in range(VOCAB * VOCAB)], dtype=float)
    assert observed[wanted == 0].sum() == 0
    common = wanted >= 8
    groups = [*observed[common]], [*wanted[common]]
    if wanted[~common].sum() > 0:
        groups = [*groups[0], observed[~common].sum()], [*groups[1], wanted[~common].sum()]
    assert chisquare(*groups).pvalue > FALSE_ALARM


def test_a_draft_from_the_target_itself_is_always_kept() -> None:
    chances = _warped(FIRST, {"temperature": 1.0})
    drawn = Drawn(tuple(range(VOCAB)), tuple(chances.tolist()))
    for seed in range(300):
        tree = TokenTree(9)
        tree.draw(0, random.Random(seed).choices(range(VOCAB), chances)[0], drawn)
        params = SamplingParams(temperature=1.0, seed=seed)
        rows = [Row(params=params, position=9), Row(params=params, position=10)]
        logits = torch.tensor(np.array([FIRST, FIRST]), dtype=torch.float32)
        scores = Scores(tree=tree, choices=[0, 0], rows=rows, output=_only(logits))
        accepted, _ = _decided(Rejection(), scores)
        assert accepted == [1]


def test_a_draw_that_misses_by_rounding_is_kept() -> None:
    """Nothing is left that another token could be drawn from."""
    tree = TokenTree(9)
    child = tree.draw(0, 0, Drawn((0, 1), (math.nextafter(0.25, 1), 0.75)))
    after = {0: Listed(np.arange(2), np.array([0.25, 0.75]))}
    scores = _scores([[0.25, 0.75]] * 2, tree)._replace(after=after)
    assert _step(scores, 0, np.array([1.0, 0.5])) == (child, 0)


def test_a_guess_beside_a_draw_is_followed_where_it_is_what_is_left() -> None:
    tree = TokenTree(9)
    tree.draw(0, 1, Drawn((1,), (1.0,)))
    guess = tree.add(0, 2)
    after = {0: Listed(np.array([2]), np.ones(1))}
    scores = _scores([[1.0, 0.0, 0.0]] * 3, tree)._replace(after=after)
    assert Rejection()(scores) == ([guess], 0)


def _scores(lines: list[list[float]], tree: TokenTree, temperature: float = 1.0) -> Scores:
    """Scores of a tree whose nodes have these probabilities."""
    logits = torch.tensor(lines).log()
    rows = [
        Row(params=SamplingParams(temperature=temperature), position=5 + depth)
        for depth in tree.depths
    ]
    return Scores(tree=tree, choices=logits.argmax(-1).tolist(), rows=rows, output=_only(logits))


# p, its entropy in nats, and min(0.09, 0.3 exp(-H)).
BY_HAND = [
    ([0.97, 0.01, 0.01, 0.01], 0.1677, 0.09),
    ([0.4, 0.3, 0.2, 0.1], 1.2799, 0.08341),
    ([0.25, 0.25, 0.25, 0.25], 1.3863, 0.075),
]


@pytest.mark.parametrize(("chances", "entropy", "floor"), BY_HAND)
def test_the_floor_is_the_papers_formula(
    chances: list[float], entropy: float, floor: float
) -> None:
    p = np.array(chances)
    assert -float(p @ np.log(p)) == pytest.approx(entropy, abs=1e-3)
    for found in (Listed(np.arange(4), p), Whole(torch.tensor(p).log(), 0.0)):
        assert Typical().floor(found) == pytest.approx(floor, abs=1e-4)
        assert Typical(threshold=0.01).floor(found) == pytest.approx(0.01)
        low = Typical(threshold=1.0, alpha=1.0).floor(found)
        assert low == pytest.approx(math.exp(-entropy), rel=1e-3)


def test_typical_keeps_what_is_above_the_floor_and_the_longest_of_it() -> None:
    p = [0.4, 0.3, 0.2, 0.1]
    tree = TokenTree(9)
    short = tree.add(0, 0)
    long = tree.add_path([2, 1])
    tree.add(0, 3)
    scores = _scores([p] * len(tree), tree)
    accepted, last = _decided(Typical(), scores)
    assert accepted == tree.path(long)
    assert last == scores.choices[long]
    accepted, _ = _decided(Typical(threshold=0.25, alpha=1.0), scores)
    assert accepted == [short], "0.2 is under the floor of 0.25 now"


@pytest.mark.parametrize("tokens", [(2, 1), (1, 2)])
def test_of_paths_of_one_length_the_likelier_wins(tokens: tuple[int, int]) -> None:
    tree = TokenTree(9)
    for token in tokens:
        tree.add(0, token)
    accepted, _ = _decided(Typical(), _scores([[0.4, 0.35, 0.15, 0.1]] * 3, tree))
    assert [tree.ids[node] for node in accepted] == [1]


def test_a_path_is_as_likely_as_all_of_its_tokens() -> None:
    """0.5 of 0.3 is more than 0.3 of 0.4."""
    tree = TokenTree(9)
    likelier = tree.add_path([0, 2])
    tree.add_path([1, 3])
    lines = [[0.5, 0.3, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1], [0.2, 0.2, 0.2, 0.4]]
    scores = _scores([lines[at] for at in (0, 1, 1, 2, 2)], tree)
    assert _decided(Typical(), scores)[0] == tree.path(likelier)


def test_what_is_typical_is_above_the_floor_not_at_it() -> None:
    tree = TokenTree(9)
    tree.add(0, 1)
    after = {0: Listed(np.arange(3), np.array([0.5, 0.25, 0.25]))}
    scores = _scores([[0.5, 0.25, 0.25]] * 2, tree)._replace(after=after)
    accepted, _ = Typical(threshold=0.25, alpha=9.0)(scores)
    assert accepted == []


def test_typical_is_greedy_where_sampling_is() -> None:
    tree = TokenTree(9)
    tree.add(0, 1)
    best = tree.add_path([0, 2])
    lines = [[0.5, 0.45, 0.03, 0.02]] * 2 + [[0.03, 0.02, 0.5, 0.45]] * 2
    scores = _scores(lines, tree, temperature=0.0)
    assert _decided(Typical(), scores) == (tree.path(best), 2)


def test_texts_of_a_pass_are_weighed_as_each_by_itself() -> None:
    """Of every rule, greedy and drawn, and where nothing is asked for."""
    params = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 3}]
    each = [(rule, how) for rule in (Coupled(), Rejection(), Typical()) for how in params]
    source, scores, bits = random.Random(5), list[Scores](), torch.Generator().manual_seed(5)
    logits = torch.randn(200, VOCAB, generator=bits)
    first = 0
    for text, (_, how) in enumerate(each):
        tree = TokenTree(9)
        for draft in source.sample([_chain, _siblings, _mixed], text % 3):
            draft(tree, source)
        sampling = SamplingParams(seed=text, **how)  # type: ignore[arg-type]
        rows = [Row(params=sampling, position=50 + depth) for depth in tree.depths]
        here = slice(first, first + len(tree))
        choices = sample(logits[here], rows).tolist()
        scores.append(Scores(tree, choices, rows, _only(logits), first=first))
        first += len(tree)
    together = weighed(scores, [rule for rule, _ in each])
    for (rule, _), one, alone in zip(each, together, scores, strict=True):
        (by_itself,) = weighed([alone], [rule])
        assert list(one.after) == list(rule.asks(one.tree)) == list(by_itself.after)
        for node, found in one.after.items():
            assert np.array_equal(found.listed().chances, by_itself.after[node].listed().chances)
        assert rule(one) == rule(by_itself)


def _decided(rule: Rule, scores: Scores) -> tuple[list[int], int]:
    """What a rule makes of one text's scores."""
    return rule(*weighed([scores], [rule]))


def _only(logits: torch.Tensor) -> Computed:
    """A pass of which nothing but the logits is asked."""
    return Computed(logits=logits, states=logits[:, :0])
