"""How large the window and the guesses of lookahead decoding are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.lookahead_sizes import LookaheadSizes
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

_MOST_SPENT_TOKENS = 0.1
"""What all sequences together may lose to one window in a step: with one sequence, a tenth of a
step's time, with more of them less."""


def choose(
    config: LookaheadConfig,
    cost: StepCost,
    parameters: float,
    *,
    asked: LookaheadSizes | None = None,
    most_rows: int = 1 << 16,
) -> Sizes:
    """Settles W, N and G: what the request asks for, else the deployment, else what pays here.

    A window that is left open is the published one, narrowed until its rows are cheap on this
    machine beside what else runs now. One that no step has room for is narrowed as well.

    Args:
        config: What the deployment has settled.
        cost: Of the engine's steps.
        parameters: Of the target.
        asked: What the request has settled.
        most_rows: Rows a step has for one sequence's window.
    """
    asked = asked or LookaheadSizes()
    published = next(sizes for most, sizes in PUBLISHED if parameters <= most)
    columns = asked.window or config.window_columns
    ngram = asked.ngram or config.ngram_tokens
    guesses = asked.guesses or config.guess_ngrams
    sizes = Sizes(
        window=columns or published.window,
        ngram=ngram or published.ngram,
        guesses=guesses or published.guesses,
    )
    if not columns:
        narrower = (replace(sizes, window=w) for w in range(sizes.window, SMALLEST.window, -1))
        smallest = replace(
            SMALLEST, ngram=ngram or SMALLEST.ngram, guesses=guesses or SMALLEST.guesses
        )
        sizes = next((each for each in narrower if _cheap(each, cost)), smallest)
    return replace(sizes, window=min(sizes.window, _fitting(sizes.ngram, most_rows)))


def _cheap(sizes: Sizes, cost: StepCost) -> bool:
    without = cost.round_s(0)
    more = cost.round_s(sizes.window_nodes) - without
    return more * cost.rate(1.0, without) <= _MOST_SPENT_TOKENS


def _fitting(ngram: int, rows: int) -> int:
    """Columns of the widest window of so many rows; at least 1."""
    return max((rows + 1) // (ngram - 1), 1)
