"""The draft of one round: candidates that n-grams predict, as far as they are worth checking."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import IntEnum
from typing import NamedTuple

from common.model.tree import TokenTree
from common.ngrams import Calibration, Contexts, Predictor, Tables
from verifier.cost import StepCost


class Origin(IntEnum):
    """What a candidate comes from; of several, the first that knows it."""

    TEXT = 1
    """Counts over the sequence's own text."""
    SHARED = 2
    """N-grams of other sequences."""
    TARGET = 3
    """What the target chose where the text did not go: in the window, or after a wrong guess."""


class Forecast(NamedTuple):
    """Candidates of one round: a trie in order of falling chance."""

    tokens: Seq[int] = ()
    """Token of each candidate."""
    parents: Seq[int] = ()
    """Index of each one's parent; -1 stands for the root."""
    chances: Seq[float] = ()
    """Chance that the text takes this path, `[candidates]`."""
    worth: int = 0
    """How many of the first give the most tokens for the seconds of the step."""

    @property
    def expected(self) -> float:
        """Tokens that what is worth checking brings, on average."""
        return sum(self.chances[: self.worth])

    def plant(self, tree: TokenTree, count: int) -> None:
        """Adds the first `count` candidates to a tree."""
        nodes = [0] * (count + 1)  # the root's index, -1, is the last place
        for index in range(count):
            nodes[index] = tree.add(nodes[self.parents[index]], self.tokens[index])


class Forecaster:
    """Predicts one sequence's text.

    Args:
        sources: What to predict from, the most trusted first.
        order: Longest context, in tokens.
        calibration: What predictions have been worth.
        cost: Of the engine's steps.
        behind: Tokens of the text so far.
    """

    def __init__(
        self,
        sources: Seq[tuple[Origin, Contexts | Tables]],
        order: int,
        calibration: Calibration,
        cost: StepCost,
        behind: int,
    ) -> None:
        self._cost = cost
        self._predictor = Predictor(sources, order, calibration, cost.table_behind(behind))

    def forecast(self, ids: Seq[int], most: int, line: Seq[int] = (), agreed: int = 0) -> Forecast:
        """The likeliest candidates, and a few more than are worth checking.

        Args:
            ids: The text so far.
            most: Most candidates.
            line: A continuation that is more than counts can say; see `Match`.
            agreed: Tokens of context that agree with it.
        """
        return Forecast(*self._predictor.search(ids, most, self._cost.others, line, agreed))

    def plant(self, forecast: Forecast, tree: TokenTree, most: int) -> int:
        """Adds the candidates that pay beside the draft nodes that are in a tree already.

        Args:
            forecast: The last one.
            tree: Where to.
            most: Most candidates.

        Returns:
            How many were added.
        """
        nodes, count = len(tree) - 1, min(forecast.worth, most)
        if nodes:
            count = self._predictor.worth(nodes, most, self._cost.others)
        forecast.plant(tree, count)
        return count

    def learn(self, ids: Seq[int]) -> None:
        """Compares the last forecast with the text that came.

        Args:
            ids: The tokens committed since.
        """
        self._predictor.learn(ids)
