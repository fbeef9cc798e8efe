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


@dataclass
class _State:
    said: Contexts  # what the target chose where the text did not go
    index: TextIndex
    forecaster: Forecaster
    sizes: LookaheadSizes  # as settled; a window of 0 columns follows the load
    most_nodes: int
    window: Window
    shared: SharedPool | None
    interest: Interest
    tree: TokenTree | None = None  # the one proposed to
    placed: bool = False  # the window stands in the tree
    known: int = 0  # tokens of the text when the last round that it heard of ended
    ended_at: float | None = None  # when it did
    rounds: int = 0


class LookaheadProposer:
    """Lookahead decoding.

    Args:
        config: Sizes.
        cost: Of the engine's steps.
        parameters: Of the target.
        most_rows: Of one step.
        shared: N-grams of other sequences, where there are any.
        tenant: Whose n-grams a sequence may see.
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
        tenant: Callable[[Sequence], str] = lambda sequence: "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config, self._cost, self._parameters = config, cost, parameters
        self._most_rows = most_rows
        self._shared, self._tenant, self._clock = shared, tenant, clock
        self._calibration = Calibration()
        self._duty = Duty()
        self._interests = Interests(cost, clock)
        self._states: dict[Sequence, _State] = {}
        self.windows = 0
        """Rounds with the window so far, over all sequences."""

    def open(self, sequence: Sequence) -> None:
        """Fills a window with the prompt's tokens, and the pool where it is to be seeded."""
        asked = sequence.request.lookahead
        chosen = self._choose(asked, self._most_rows - 1)
        order = max(chosen.ngram - 1, _LEAST_ORDER)
        text, said = Contexts(order), Contexts(order, _MOST_SAID)
        shared = self._shared.of(self._tenant(sequence)) if self._shared else None
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
        self._states[sequence] = state
        state.index.catch_up(sequence.ids)
        if shared is not None:
            shared.expect(sequence.ids[-_EXPECTED:])

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Always."""
        return True

    def foresee(self, sequence: Sequence) -> float:
        """Tokens that the next guesses are expected to bring."""
        forecast = self._look(self._states[sequence], sequence)
        return forecast.expected if forecast is not None else 0.0

    def rests(self, sequence: Sequence) -> bool:
        """Never: it learns from each round by itself."""
        return False

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
        fresh, state.known = len(sequence.ids) - state.known, len(sequence.ids)
        stood = outcome.tree is state.tree  # else the cache had no room for it
        self.windows += state.placed
        before, state.ended_at = state.ended_at, self._clock()
        missed = fresh != len(outcome.ids)  # it did not hear of rounds before
        if not missed:
            if before is not None and state.tree is not None:  # asked in that round
                self._duty.observe(tokens=fresh, seconds=state.ended_at - before)
            if state.interest.forecast is not None:
                state.forecaster.learn(outcome.ids)
        state.interest.end_round(missed=missed)
        _listen(state.said, sequence, outcome)
        if stood and state.placed:
            state.window.learn(outcome.choices, fresh)
        else:
            state.window.skip(fresh)
        if state.shared is not None and self._shared is not None:
            state.shared.add(_stretch(sequence, fresh, self._shared.ngram_tokens))
        state.tree, state.placed = None, False

    def close(self, sequence: Sequence) -> None:
        """Forgets the sequence; what it shared stays."""
        self._states.pop(sequence, None)

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

    def _look(self, state: _State, sequence: Sequence) -> Forecast | None:
        """The forecast for the next round; none where there is no look."""
        return state.interest.look(lambda: self._find(state, sequence))

    def _find(self, state: _State, sequence: Sequence) -> Forecast | None:
        """Looks; not while a long prompt is still being indexed."""
        if not state.index.catch_up(sequence.ids):
            return None
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
