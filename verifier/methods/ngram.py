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
from verifier.pool.guesser import Guesser, Guessing
from verifier.pool.index import TextIndex
from verifier.pool.interest import Interest, Interests
from verifier.pool.match import Match
from verifier.proposer import Outcome
from verifier.sequence import Sequence

_ORDER = 3
"""Longest counted context; longer ones are `Match`'s."""


@dataclass(kw_only=True)
class _State(Guessing):
    match: Match


class NgramProposer(Guesser[_State]):
    """Prompt lookup and counted n-grams.

    Args:
        cost: Of the engine's steps.
        most_nodes: Largest draft where a request leaves it open.
    """

    def __init__(self, cost: StepCost, most_nodes: int) -> None:
        super().__init__()
        self._cost = cost
        self._most_nodes = most_nodes
        self._calibration = Calibration()
        self._interests = Interests(cost)

    def open(self, sequence: Sequence) -> None:
        """Starts to index the prompt."""
        contexts, match, known = Contexts(_ORDER), Match(), len(sequence.ids)
        sources = [(Origin.TEXT, contexts)]
        state = _State(
            index=TextIndex(contexts, match),
            match=match,
            forecaster=Forecaster(sources, _ORDER, self._calibration, self._cost, known),
            interest=Interest(self._interests),
            known=known,
        )
        self._begin(state, sequence)

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds what is likely enough to pay."""
        state = self._states[sequence]
        forecast = self._look(state, sequence) if budget > 0 else None
        if forecast is not None:
            state.forecaster.plant(forecast, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns what the forecast was worth, and the new text."""
        self._hear(self._states[sequence], sequence, outcome)

    def _forecast(self, state: _State, sequence: Sequence) -> Forecast:
        most = sequence.request.draft_tokens or self._most_nodes
        line = state.match.continuation(sequence.ids, most)
        return state.forecaster.forecast(sequence.ids, most, line, state.match.length)
