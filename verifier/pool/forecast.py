"""The draft of one round: candidates that n-grams predict, as far as they are worth checking."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass
from enum import IntEnum

from common.model.tree import TokenTree
from common.ngrams import MATCH, Calibration, Contexts, Predictor, Tables
from verifier.cost import StepCost


class Origin(IntEnum):
    """Where a candidate comes from; the first that knows it is named."""

    MATCH = MATCH
    """An earlier occurrence of the text's end, continued."""
    TEXT = 1
    """Counts over the sequence's own text."""
    SHARED = 2
    """N-grams of other sequences."""
    TARGET = 3
    """What the target chose where the text did not go: in the window, or after a wrong guess."""


@dataclass
class Forecast:
    """Candidates of one round: a trie in order of falling chance."""

    tokens: Ids[int] = ()
    """Token of each candidate."""
    parents: Ids[int] = ()
    """Index of each one's parent; -1 stands for the root."""
    chances: Ids[float] = ()
    """Chance that the text takes this path, `[candidates]`."""
    worth: int = 0
    """How many of the first give the most tokens for the seconds of the step."""
    planted: int = 0
    """How many were put into the tree."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def expected(self) -> float:
        """Tokens that what is worth checking brings, on average."""
        return sum(self.chances[: self.worth])

    def plant(self, tree: TokenTree, count: int) -> None:
        """Adds the first `count` candidates to a tree."""
        nodes = [0] * (count + 1)  # the root's index, -1, is the last place
        for index in range(count):
            nodes[index] = tree.add(nodes[self.parents[index]], self.tokens[index])
        self.planted = count


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
        sources: Ids[tuple[Origin, Contexts | Tables]],
        order: int,
        calibration: Calibration,
        cost: StepCost,
        behind: int,
    ) -> None:
        self._cost = cost
        self._predictor = Predictor(sources, order, calibration, cost.table_behind(behind))

    def forecast(self, ids: Ids[int], most: int, line: Ids[int] = (), agreed: int = 0) -> Forecast:
        """The likeliest candidates, and a few more than are worth checking.

        Args:
            ids: The text so far.
            most: Most candidates.
            line: A continuation that is more than counts can say; see `Match`.
            agreed: Tokens of context that agree with it.
        """
        return Forecast(*self._predictor.search(ids, most, self._cost.others, line, agreed))

    def plant(self, forecast: Forecast, tree: TokenTree, most: int) -> None:
        """Adds the candidates that pay beside the draft nodes that are in a tree already.

        Args:
            forecast: The last one.
            tree: Where to.
            most: Most candidates.
        """
        nodes, count = len(tree) - 1, min(forecast.worth, most)
        if nodes:
            count = self._predictor.worth(nodes, most, self._cost.others)
        forecast.plant(tree, count)

    def learn(self, ids: Ids[int]) -> None:
        """Compares the last forecast with the text that came.

        Args:
            ids: The tokens committed since.
        """
        self._predictor.learn(ids)

    def origins(self, forecast: Forecast, ids: Ids[int]) -> list[Origin]:
        """Where those planted candidates come from that a text went through, from the root down.

        Args:
            forecast: The last one.
            ids: The tokens committed since.
        """
        return [Origin(each) for each in self._predictor.origins(ids, forecast.planted)]
