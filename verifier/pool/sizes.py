"""How large the window and the guesses of lookahead decoding are."""

from __future__ import annotations

from dataclasses import dataclass

from verifier.cost import StepCost
from verifier.pool.config import LookaheadConfig


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """W, N and G, settled."""

    window: int
    """W."""
    ngram: int
    """N, at least 2."""
    guesses: int
    """G."""

    @property
    def window_nodes(self) -> int:
        """Nodes of a warm window; its first column of level 0 is the root."""
        return self.window * (self.ngram - 1) - 1

    @property
    def guess_nodes(self) -> int:
        """Most nodes of the guesses."""
        return self.guesses * (self.ngram - 1)


PUBLISHED = (
    (10e9, Sizes(window=15, ngram=5, guesses=15)),
    (20e9, Sizes(window=10, ngram=5, guesses=10)),
    (float("inf"), Sizes(window=7, ngram=5, guesses=7)),
)
"""What the authors recommend for targets of at most so many parameters, where rows cost little."""

SMALLEST = Sizes(window=1, ngram=3, guesses=8)
"""For machines on which no published window is cheap."""

_SHARE = 0.1
"""Most of a step's time that the window may add."""


def choose(config: LookaheadConfig, cost: StepCost, parameters: float) -> Sizes:
    """Settles what the configuration leaves open.

    The published window is narrowed until its rows are cheap on this machine.

    Args:
        config: What is settled already.
        cost: Of the engine's steps.
        parameters: Of the target.
    """
    sizes = next(sizes for most, sizes in PUBLISHED if parameters <= most)
    narrower = (
        Sizes(window=columns, ngram=sizes.ngram, guesses=sizes.guesses)
        for columns in range(sizes.window, SMALLEST.window, -1)
    )
    found = next((sizes for sizes in narrower if _cheap(sizes, cost)), SMALLEST)
    return Sizes(
        window=config.window_columns or found.window,
        ngram=config.ngram_tokens or found.ngram,
        guesses=config.guess_ngrams or found.guesses,
    )


def _cheap(sizes: Sizes, cost: StepCost) -> bool:
    return cost.round_s(sizes.window_nodes) <= (1 + _SHARE) * cost.round_s(0)
