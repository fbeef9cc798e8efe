"""Lookahead decoding: drafts from n-grams that the target itself made, without another model.

Each step checks two things in one tree. Guesses come out of the pools (what this sequence's text
has shown, what others' have, what the target said where the text did not go) as one trie, as far
as they pay. The window makes new n-grams; it runs while those earn its rows, and not where the
pools answer well by themselves. (Fu et al. 2024, https://arxiv.org/abs/2402.02057)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.lookahead_sizes import LookaheadSizes
from common.model.tree import TokenTree
from common.ngrams import Calibration, Contexts, Tables
from verifier.cost import StepCost
from verifier.pool import sizes
from verifier.pool.config import LookaheadConfig
from verifier.pool.duty import Duty
from verifier.pool.forecast import Forecast, Forecaster, Origin
from verifier.pool.guesser import Guesser, Guessing
from verifier.pool.index import TextIndex
from verifier.pool.interest import Interest, Interests
from verifier.pool.shared import SharedPool, SharedPools
from verifier.pool.window import Window
from verifier.proposer import Outcome
from verifier.sequence import Sequence

_LEAST_ORDER = 3
"""Tokens of context that guesses look at, even where the window's n-grams are shorter."""

_MOST_SAID = 1 << 12
"""Contexts of such choices that are remembered."""

_EXPECTED = 64
"""Tokens at the end of the prompt that shared n-grams are fetched for while it is computed."""

_ENOUGH_TOKENS = 1.0
"""Where the pools are expected to add so many, the window is left out."""

_RESIZE_ROUNDS = 16
"""Rounds between two looks at how wide a window the load allows."""


@dataclass(kw_only=True)
class _State(Guessing):
    said: Contexts  # what the target chose where the text did not go
    sizes: LookaheadSizes  # as settled; a window of 0 columns follows the load
    most_nodes: int
    window: Window
    shared: SharedPool | None
    tree: TokenTree | None = None  # the one proposed to
    placed: bool = False  # the window stands in the tree
    ended_at: float | None = None  # when the last round that it heard of was over
    rounds: int = 0


class LookaheadProposer(Guesser[_State]):
    """Lookahead decoding.

    Args:
        config: Sizes.
        cost: Of the engine's steps.
        parameters: Of the target.
        most_rows: Of one step.
        shared: N-grams of other sequences, where there are any; each sees those of its tenant.
        clock: Seconds.
    """

    def __init__(
        self,
        config: LookaheadConfig,
        cost: StepCost,
        *,
        parameters: float = 0.0,
        most_rows: int = 256,
        shared: SharedPools | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._config, self._cost, self._parameters = config, cost, parameters
        self._most_rows = most_rows
        self._shared, self._clock = shared, clock
        self._calibration = Calibration()
        self._duty = Duty()
        self._interests = Interests(cost, clock)
        self.windows = 0
        """Rounds with the window so far, over all sequences."""

    def open(self, sequence: Sequence) -> None:
        """Fills a window with the prompt's tokens, and the pool where it is to be seeded."""
        asked = sequence.request.lookahead
        chosen = self._choose(asked, self._most_rows - 1)
        order = max(chosen.ngram - 1, _LEAST_ORDER)
        text, said = Contexts(order), Contexts(order, _MOST_SAID)
        shared = self._shared.of(sequence.tenant.hex()) if self._shared else None
        sources: list[tuple[Origin, Contexts | Tables]] = [(Origin.TEXT, text)]
        if shared is not None:
            sources.append((Origin.SHARED, shared))
        sources.append((Origin.TARGET, said))
        prompt = itertools.cycle(sequence.request.prompt_ids)
        state = _State(
            said=said,
            index=TextIndex(
                text, start=0 if self._config.seed_from_prompt else sequence.prompt_len
            ),
            forecaster=Forecaster(sources, order, self._calibration, self._cost, len(sequence.ids)),
            sizes=replace(asked, ngram=chosen.ngram, guesses=chosen.guesses),
            most_nodes=chosen.guess_nodes,
            window=Window(chosen.window, chosen.ngram, prompt.__next__),
            shared=shared,
            interest=Interest(self._interests),
            known=len(sequence.ids),
        )
        self._begin(state, sequence)
        if shared is not None:
            shared.expect(sequence.ids[-_EXPECTED:])

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds guesses as far as they pay, and the window where it is due."""
        state = self._states[sequence]
        state.tree, before = tree, len(tree)
        expected = self._guess(state, sequence, tree, budget)
        left = budget - (len(tree) - before)
        if budget > 0 and self._duty.due and expected < _ENOUGH_TOKENS:
            state.rounds += 1
            if state.rounds % _RESIZE_ROUNDS == 0 or state.window.rows > left:
                state.window.resize(self._choose(state.sizes, left).window)
            if state.window.rows <= left:
                state.window.place(tree)
                state.placed = True

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns from the text, and from what the target chose everywhere else in the tree."""
        state = self._states[sequence]
        stood = outcome.tree is state.tree  # else the cache had no room for it
        self.windows += state.placed
        before, state.ended_at = state.ended_at, self._clock()
        fresh = self._hear(state, sequence, outcome)
        asked = state.tree is not None and fresh == len(outcome.ids)  # in that round
        if asked and before is not None:
            self._duty.observe(tokens=fresh, seconds=state.ended_at - before)
        _listen(state.said, sequence, outcome)
        if stood and state.placed:
            state.window.learn(outcome.choices, fresh)
        else:
            state.window.skip(fresh)
        if state.shared is not None and self._shared is not None:
            state.shared.add(_stretch(sequence, fresh, self._shared.ngram_tokens))
        state.tree, state.placed = None, False

    def _choose(self, asked: LookaheadSizes, most_rows: int) -> sizes.Sizes:
        return sizes.choose(
            self._config, self._cost, self._parameters, asked=asked, most_rows=most_rows
        )

    def _guess(self, state: _State, sequence: Sequence, tree: TokenTree, most: int) -> float:
        """Adds guesses; returns how many tokens they are expected to bring."""
        if most <= 0:
            return 0.0
        forecast = self._look(state, sequence)
        if forecast is None:
            return 0.0
        return sum(forecast.chances[: state.forecaster.plant(forecast, tree, most)])

    def _forecast(self, state: _State, sequence: Sequence) -> Forecast:
        most = min(sequence.request.draft_tokens or state.most_nodes, state.most_nodes)
        return state.forecaster.forecast(sequence.ids, most)


def _listen(said: Contexts, sequence: Sequence, outcome: Outcome) -> None:
    """Notes the target's choice after every node that the text did not go through.

    That holds the window's n-grams: the path to a node of its last level is a column of it.
    """
    tree, taken = outcome.tree, set(outcome.accepted)
    root = len(sequence.ids) - len(outcome.ids)
    contexts = [tuple(sequence.ids[max(root - said.order, 0) : root])]
    for node in range(1, len(tree)):
        contexts.append((*contexts[tree.parents[node]], tree.ids[node])[-said.order :])
        if node not in taken:
            said.add(contexts[node], outcome.choices[node])


def _stretch(sequence: Sequence, fresh: int, length: int) -> list[int]:
    """The end of the text in which all n-grams end in one of the last `fresh` tokens."""
    return sequence.ids[max(len(sequence.ids) - fresh - length + 1, 0) :]
