"""The lookahead branch: a Jacobi window of trajectories, as nodes of the token tree.

Level 0 is a guess at the next tokens, level l + 1 what the target said after level l; column i of
level l stands at position root + i + l. A step puts the window into the tree, reads the target's
choices at its last level and moves on; each column is then an n-gram that the target itself made.
(Fu et al. 2024, https://arxiv.org/abs/2402.02057, with the window moved by what was accepted.)

As tree nodes, (0, i) is a child of (0, i - 1) and (l, i) one of (l - 1, i): the ancestors of a
node are just what the paper's mask lets it see, and its depth is its position.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from common.model.tree import TokenTree


class Window:
    """One sequence's window.

    Args:
        width: Columns, the paper's W; column 0 of level 0 is the root.
        ngram: Tokens of an n-gram, the paper's N: N - 1 levels once warm.
        fill: Yields a token for a place nothing is known about.
    """

    def __init__(self, width: int, ngram: int, fill: Callable[[], int]) -> None:
        assert width >= 1
        assert ngram >= 2
        self._width, self._ngram, self._fill = width, ngram, fill
        self._levels: list[list[int]] = [[]]  # of level 0 the root is left out
        self._nodes: list[list[int]] = []
        self._refill()

    @property
    def levels(self) -> Seq[Seq[int]]:
        """Tokens by level; level 0 begins with column 1."""
        return self._levels

    @property
    def nodes(self) -> Seq[Seq[int]]:
        """Nodes of the tree `place` was given, by level; level 0 begins with the root."""
        return self._nodes

    @property
    def rows(self) -> int:
        """Nodes it takes at most."""
        return sum(map(len, self._levels))

    def resize(self, width: int) -> None:
        """Takes columns off the right end, or adds some there."""
        assert width >= 1
        self._width = width
        for level, row in enumerate(self._levels):
            del row[self._columns() - (level == 0) :]
        self._refill()

    def place(self, tree: TokenTree) -> None:
        """Adds the window's nodes to a tree; nodes with the same tokens before them are shared."""
        line = [0]
        for token in self._levels[0]:
            line.append(tree.probe(line[-1], token))
        self._nodes = [line]
        for level in self._levels[1:]:
            above = self._nodes[-1]
            row = [tree.probe(node, token) for node, token in zip(above, level, strict=True)]
            self._nodes.append(row)

    def learn(self, choices: Seq[int], shift: int) -> None:
        """Moves the trajectories on by what the target said.

        Args:
            choices: The target's choice after each node of the tree `place` was given.
            shift: Tokens committed.
        """
        rows = [self._levels[0], *self._levels[1:], [choices[node] for node in self._nodes[-1]]]
        if len(self._levels) < self._ngram - 1:  # warming up: one level more
            self._levels = [row[shift:] for row in rows]
        else:
            self._levels = [rows[1][shift:], *(row[shift - 1 :] for row in rows[2:])]
        self._refill()

    def skip(self, shift: int) -> None:
        """Moves the window on after a step it was not part of."""
        self._levels = [row[shift:] for row in self._levels]
        self._refill()

    def _refill(self) -> None:
        """Fills the right end: with what the next level says of the same position, if anything."""
        count, columns = len(self._levels), self._columns()
        for level in range(count - 1, -1, -1):
            row, first = self._levels[level], 0 if level else 1
            later = self._levels[level + 1] if level + 1 < count else []
            for column in range(len(row) + first, columns):
                known = 0 < column <= len(later)
                row.append(later[column - 1] if known else self._fill())

    def _columns(self) -> int:
        """Columns of every level: one less with each level gained, until it is warm."""
        return self._width + self._ngram - 1 - len(self._levels)
