"""The Jacobi window: its mask is the paper's, and its trajectories are what the target said."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.tree import TokenTree
from verifier.pool.window import Window


@dataclass(frozen=True)
class Literal:
    """The rows of one step as the paper lays them out, nothing shared, with its mask.

    [current | level 0 | level 1 | … | guesses]; level 0 begins with the current token's column.
    """

    tokens: list[int]
    positions: list[int]  # after the current token's
    sees: list[set[int]]  # rows each row attends to

    @classmethod
    def lay(cls, root: int, levels: list[list[int]], guesses: list[list[int]]) -> Literal:
        tokens, positions, sees = [root], [0], [{0}]
        place = {(0, 0): 0}
        for level, row in enumerate(levels):
            for column, token in enumerate(row, start=0 if level else 1):
                index = place[level, column] = len(tokens)
                tokens.append(token)
                positions.append(column + level)
                causal = {place[0, other] for other in range(column + 1)}
                diagonal = {place[above, column] for above in range(1, level)}
                sees.append(causal | diagonal | {index})
        for guess in guesses:
            first = len(tokens)
            for step, token in enumerate(guess):
                tokens.append(token)
                positions.append(1 + step)
                sees.append({0} | set(range(first, first + step + 1)))
        return cls(tokens, positions, sees)


def _lay_in_tree(
    window: Window, root: int, guesses: list[list[int]]
) -> tuple[TokenTree, list[int]]:
    """A tree with guesses and window, and the node of each row of `Literal`."""
    tree = TokenTree(root)
    rows = []
    for guess in guesses:
        node = 0
        for token in guess:
            node = tree.add(node, token)
            rows.append(node)
    window.place(tree)
    return tree, [node for level in window.nodes for node in level] + rows


@given(
    width=st.integers(1, 6),
    ngram=st.integers(2, 6),
    guesses=st.integers(0, 5),
    vocab=st.sampled_from([1, 2, 3, 50]),
    seed=st.integers(0, 2**32),
)
def test_the_tree_is_the_papers_mask(
    width: int, ngram: int, guesses: int, vocab: int, seed: int
) -> None:
    """At every step from the first on; rows with the same tokens are one node, no others are."""
    draw = random.Random(seed)
    window = Window(width, ngram, lambda: draw.randrange(vocab))
    for _ in range(ngram + 2):
        root = draw.randrange(vocab)
        tuples = [[draw.randrange(vocab) for _ in range(ngram - 1)] for _ in range(guesses)]
        literal = Literal.lay(root, [list(level) for level in window.levels], tuples)
        tree, node_of = _lay_in_tree(window, root, tuples)

        assert [tree.ids[node] for node in node_of] == literal.tokens
        assert [tree.depths[node] for node in node_of] == literal.positions
        for row, node in enumerate(node_of):
            assert {node_of[other] for other in literal.sees[row]} == {0, *tree.path(node)}
        assert set(node_of) == set(range(len(tree)))
        texts = [
            tuple(
                literal.tokens[other] for other in sorted(seen, key=literal.positions.__getitem__)
            )
            for seen in literal.sees
        ]
        assert len(set(texts)) == len(set(node_of)) == len(set(zip(texts, node_of, strict=True)))

        choices = [draw.randrange(vocab) for _ in tree.ids]
        window.learn(choices, 1 + draw.randrange(ngram))


@given(width=st.integers(1, 6), ngram=st.integers(2, 6))
def test_it_warms_up_to_the_papers_shape(width: int, ngram: int) -> None:
    window = Window(width, ngram, itertools.count(100).__next__)
    assert [len(level) for level in window.levels] == [width + ngram - 3]
    for step in range(ngram - 2):
        assert len(window.levels) == 1 + step
        tree = TokenTree(step)
        window.place(tree)
        window.learn([0] * len(tree), 1)
    assert [len(level) for level in window.levels] == [width - 1, *[width] * (ngram - 2)]
    assert window.rows == width * (ngram - 1) - 1


def _warm(width: int, ngram: int, seed: int) -> tuple[Window, random.Random]:
    draw = random.Random(seed)
    window = Window(width, ngram, lambda: draw.randrange(1000))
    while len(window.levels) < ngram - 1:
        tree = TokenTree(0)
        window.place(tree)
        window.learn([draw.randrange(1000) for _ in tree.ids], 1)
    return window, draw


@given(width=st.integers(1, 6), ngram=st.integers(2, 6), seed=st.integers(0, 1000))
def test_a_step_of_one_token_is_the_reference_update(width: int, ngram: int, seed: int) -> None:
    """Level 0 takes level 1 without its first, the levels move up, the choices are the last."""
    window, draw = _warm(width, ngram, seed)
    before = [list(level) for level in window.levels]
    tree = TokenTree(0)
    window.place(tree)
    choices = [draw.randrange(1000) for _ in tree.ids]
    last = [choices[node] for node in window.nodes[-1]]
    window.learn(choices, 1)
    rows = [*before, last]
    assert [list(level) for level in window.levels] == [rows[1][1:], *rows[2:]]


@given(
    width=st.integers(1, 6),
    ngram=st.integers(3, 6),
    shift=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_what_was_accepted_moves_the_window_without_moving_tokens(
    width: int, ngram: int, shift: int, seed: int
) -> None:
    """Whatever stays in the window stands at the same absolute position, a level further up."""
    window, draw = _warm(width, ngram, seed)
    tree = TokenTree(0)
    window.place(tree)
    choices = [draw.randrange(1000) for _ in tree.ids]
    before = [[0, *window.levels[0]], *window.levels[1:], [choices[n] for n in window.nodes[-1]]]
    at = {
        (level, column + level): token
        for level, row in enumerate(before)
        for column, token in enumerate(row)
    }
    window.learn(choices, shift)
    after = [[None, *window.levels[0]], *window.levels[1:]]
    assert [len(row) for row in after] == [width] * (ngram - 1)
    for level, row in enumerate(after):
        for column, token in enumerate(row):
            known = at.get((level + 1, shift + column + level))
            if token is not None and known is not None:
                assert token == known


@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=2),
    ngram=st.integers(2, 6),
    steps=st.integers(0, 6),
)
def test_another_width_keeps_the_columns_that_stay(
    widths: list[int], ngram: int, steps: int
) -> None:
    before, after = widths
    window = Window(before, ngram, itertools.count(100).__next__)
    for step in range(steps):
        tree = TokenTree(step)
        window.place(tree)
        window.learn(range(1000, 1000 + len(tree)), 1)
    kept = [list(level) for level in window.levels]
    window.resize(after)
    for old, new in zip(kept, window.levels, strict=True):
        stay = min(len(old), len(new))
        assert list(new[:stay]) == old[:stay]
        assert len(new) - len(old) == after - before


@pytest.mark.parametrize("shift", [1, 2])
def test_each_column_is_an_ngram_the_target_made(shift: int) -> None:
    """Of a target that only looks at the last token, every column is a stretch of text."""
    window = Window(4, 4, itertools.count().__next__)

    def target(token: int) -> int:
        return (5 * token + 3) % 97

    for step in range(12):
        tree = TokenTree(50 + step)
        window.place(tree)
        window.learn([target(token) for token in tree.ids], shift)
    first, *later = window.levels
    known = range(1, 4 if shift == 1 else 2)  # columns beyond were filled, not made
    for column in known:
        chain = [first[column - 1], *(level[column] for level in later)]
        assert chain[1:] == [target(token) for token in chain[:-1]]


@pytest.mark.parametrize("shift", [1, 2, 30])
def test_a_step_without_the_window_keeps_its_shape(shift: int) -> None:
    window, _ = _warm(3, 4, 0)
    shape = [len(level) for level in window.levels]
    window.skip(shift)
    assert [len(level) for level in window.levels] == shape
