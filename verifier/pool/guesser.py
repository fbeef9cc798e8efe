"""What methods have in common that look a text's continuation up.

Each sequence has an index of its text and a forecast of what follows; of rounds in which nothing
was looked up they learn all the same. What is looked up, and what is proposed of it, is theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from verifier.pool.forecast import Forecast, Forecaster
from verifier.pool.index import TextIndex
from verifier.pool.interest import Interest
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence


@dataclass(kw_only=True)
class Guessing:
    """What there is of one sequence."""

    index: TextIndex
    """Of its text."""
    forecaster: Forecaster
    """Says what may follow."""
    interest: Interest
    """Says when that is asked."""
    known: int
    """Tokens of the text when the last round that it heard of ended."""


_State = TypeVar("_State", bound=Guessing)


class Guesser(Proposer, ABC, Generic[_State]):
    """A proposer that is always ready, and knows what it expects."""

    def __init__(self) -> None:
        self._states: dict[Sequence, _State] = {}

    def foresee(self, sequence: Sequence) -> float:
        """Tokens that the next guesses are expected to bring."""
        forecast = self._look(self._states[sequence], sequence)
        return forecast.expected if forecast is not None else 0.0

    def close(self, sequence: Sequence) -> None:
        """Forgets the sequence."""
        self._states.pop(sequence, None)

    @abstractmethod
    def _forecast(self, state: _State, sequence: Sequence) -> Forecast:
        """Looks, in a text that is indexed."""

    def _begin(self, state: _State, sequence: Sequence) -> None:
        """Starts to index the prompt."""
        self._states[sequence] = state
        state.index.catch_up(sequence.ids)

    def _look(self, state: _State, sequence: Sequence) -> Forecast | None:
        """The forecast for the next round; none where there is no look."""
        return state.interest.look(lambda: self._find(state, sequence))

    def _find(self, state: _State, sequence: Sequence) -> Forecast | None:
        """Looks; not while a long prompt is still being indexed."""
        return self._forecast(state, sequence) if state.index.catch_up(sequence.ids) else None

    def _hear(self, state: _State, sequence: Sequence, outcome: Outcome) -> int:
        """Learns what the round's forecast was worth.

        Returns:
            Tokens that are new to it: more than the outcome's where it missed rounds before.
        """
        fresh, state.known = len(sequence.ids) - state.known, len(sequence.ids)
        missed = fresh != len(outcome.ids)
        if state.interest.forecast is not None and not missed:
            state.forecaster.learn(outcome.ids)
        state.interest.end_round(missed=missed)
        return fresh
