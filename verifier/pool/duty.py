"""Whether something that costs rows in every round makes sequences faster."""

from __future__ import annotations

from verifier.gates.contest import Contest

_ROUNDS = 128
"""Of a window: enough for texts that are easier than others to even out."""


class Duty:
    """Tries it, over all sequences."""

    def __init__(self) -> None:
        self._contest = Contest()
        self.due = self._contest.next_mode()
        """Whether to run it now."""
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0

    def observe(self, *, tokens: int, seconds: float) -> None:
        """Takes a round.

        Args:
            tokens: That it committed.
            seconds: Since the one before ended.
        """
        self._rounds += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._rounds == _ROUNDS:
            self._contest.learn(self.due, self._tokens / max(self._seconds, 1e-9))
            self.due = self._contest.next_mode()
            self._rounds, self._tokens, self._seconds = 0, 0, 0.0
