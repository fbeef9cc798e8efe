"""Whether something that costs rows in every step brings more tokens than it takes.

It runs for a trial; if it has not paid by the end it rests, for twice as long each time. What it
brings may come later, so a trial is long and gains count while it rests as well.
"""

from __future__ import annotations

_TRIAL_ROUNDS = 48
_FIRST_REST = 128
_MOST_REST = 4096


class Duty:
    """The account of one such thing, over all sequences."""

    def __init__(self) -> None:
        self._earned = self._spent = 0.0
        self._runs = 0
        self._rest = _FIRST_REST
        self._resting = 0

    @property
    def due(self) -> bool:
        """Whether to run it now."""
        return self._resting == 0

    def observe(self, *, earned: float, spent: float) -> None:
        """Takes a round.

        Args:
            earned: Tokens it brought.
            spent: Tokens that could have been made in the time it took; 0 where it did not run.
        """
        self._resting = max(self._resting - 1, 0)
        self._earned += earned
        self._spent += spent
        self._runs += spent > 0
        if self._runs >= _TRIAL_ROUNDS:
            self._decide()

    def _decide(self) -> None:
        if self._earned < self._spent:
            self._resting = self._rest
            self._rest = min(2 * self._rest, _MOST_REST)
        else:
            self._rest = _FIRST_REST
        self._runs = 0
        self._earned, self._spent = self._earned / 2, self._spent / 2
