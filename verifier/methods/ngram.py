"""Drafts by looking things up in the sequence's own prompt and output; no model.

Long repeats are followed token by token (`Match`), short ones counted (`Contexts`); a forecast
of both is checked as far as it pays. What the forecasts were worth is learned from the text
itself, so a sequence that does not repeat itself is soon left alone, and not for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.model.tree import TokenTree
from common.ngrams import Calibration, Contexts
from verifier.cost import StepCost
from verifier.pool.forecast import Forecast, Forecaster, Origin
from verifier.pool.index import TextIndex
from verifier.pool.interest import Interest, Interests
from verifier.pool.match import Match
from verifier.proposer import Outcome
from verifier.sequence import Sequence

_ORDER = 3
"""Longest counted context; longer ones are `Match`'s."""


@dataclass
class _State:
    index: TextIndex
    match: Match
    forecaster: Forecaster
    interest: Interest
    known: int  # tokens of the text when the last round that it heard of ended


class NgramProposer:
    """Prompt lookup and counted n-grams.

    Args:
        cost: Of the engine's steps.
        most_nodes: Largest draft where a request leaves it open.
    """

    def __init__(self, cost: StepCost, most_nodes: int) -> None:
        self._cost = cost
        self._most_nodes = most_nodes
        self._calibration = Calibration()
        self._interests = Interests(cost)
        self._states: dict[Sequence, _State] = {}

    def open(self, sequence: Sequence) -> None:
        """Starts to index the prompt."""
        contexts, match, known = Contexts(_ORDER), Match(), len(sequence.ids)
        sources = [(Origin.TEXT, contexts)]
        forecaster = Forecaster(sources, _ORDER, self._calibration, self._cost, known)
        interest = Interest(self._interests)
        state = _State(TextIndex(contexts, match), match, forecaster, interest, known)
        self._states[sequence] = state
        state.index.catch_up(sequence.ids)

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Always."""
        return True

    def foresee(self, sequence: Sequence) -> float:
        """Tokens that the next draft is expected to bring."""
        forecast = self._look(self._states[sequence], sequence)
        return forecast.expected if forecast is not None else 0.0

    def rests(self, sequence: Sequence) -> bool:
        """Never: it learns from each round by itself."""
        return False

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds what is likely enough to pay."""
        state = self._states[sequence]
        forecast = self._look(state, sequence) if budget > 0 else None
        if forecast is not None:
            state.forecaster.plant(forecast, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns what the forecast was worth, and the new text."""
        state = self._states[sequence]
        fresh, state.known = len(sequence.ids) - state.known, len(sequence.ids)
        missed = fresh != len(outcome.ids)  # it did not hear of rounds before
        if state.interest.forecast is not None and not missed:
            state.forecaster.learn(outcome.ids)
        state.interest.end_round(missed=missed)

    def close(self, sequence: Sequence) -> None:
        """Forgets the text."""
        self._states.pop(sequence, None)

    def _look(self, state: _State, sequence: Sequence) -> Forecast | None:
        """The forecast for the next round; none where there is no look."""
        return state.interest.look(lambda: self._find(state, sequence))

    def _find(self, state: _State, sequence: Sequence) -> Forecast | None:
        """Looks; not while a long prompt is still being indexed."""
        if not state.index.catch_up(sequence.ids):
            return None
        most = sequence.request.draft_tokens or self._most_nodes
        line = state.match.continuation(sequence.ids, most)
        return state.forecaster.forecast(sequence.ids, most, line, state.match.length)
