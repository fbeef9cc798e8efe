"""Whether a text that runs alone is faster with its method: by what its own rounds bring.

A method weighs rows against tokens. What it costs besides, as heads that run or n-grams looked up,
it does not know, nor that rows cost more behind a long text. So where rounds with it bring fewer
tokens a second than a plain step would, they are left off for a while, and plain rounds of the same
text are timed: what a plain step was believed to take is long past by then, perhaps, or was of a
short text.
"""

from __future__ import annotations

from collections.abc import Callable

_ENOUGH, _ENOUGH_AGAIN = 24, 12
"""Rounds by which it is judged at first, and after a rest."""

_PLAIN = 8
"""Plain rounds that say what is better."""

_WARM = 4
"""Rounds that count for neither side after a change: a method has nothing to go on from, and a
plain step finds other caches."""

_LEAST_REST, _MOST_REST = 64, 1024
"""Rounds before it is tried again, and the more the more it loses by:"""

_TRIALS_COST = 0.01
"""the share of their tokens that a trial may cost."""

_FORGET = 0.97
_FAR = 3.0
"""A round that took more than so many times what is usual counts as if it had taken that."""


class _Pace:
    """Tokens a second, of late."""

    def __init__(self) -> None:
        self.rounds = 0
        self._weight = self._tokens = self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds

    @property
    def tokens_a_round(self) -> float:
        return self._tokens / self._weight

    def add(self, tokens: int, seconds: float) -> None:
        """Takes a round, or several, of so many tokens."""
        if self.rounds:
            seconds = min(seconds, _FAR * max(tokens, 1) * self._seconds / self._weight)
        self.rounds += 1
        self._weight = _FORGET * self._weight + 1
        self._tokens = _FORGET * self._tokens + tokens
        self._seconds = _FORGET * self._seconds + seconds


class Solo:
    """Decides for one text.

    Args:
        plain_s: What a plain step is believed to take, in seconds.
    """

    def __init__(self, plain_s: Callable[[], float]) -> None:
        self.drafting = True
        """Whether its method is to draft."""
        self._plain_s = plain_s
        self._with, self._without = _Pace(), _Pace()
        self._since = 0  # rounds, since that changed
        self._enough, self._rest = _ENOUGH, _LEAST_REST
        self._ended_at: float | None = None

    def ended(self, tokens: int, now: float, *, alone: bool) -> None:
        """Takes a round.

        Args:
            tokens: That it committed.
            now: When it ended, in seconds of the monotonic clock.
            alone: Whether no other text is computed; of others, gates are for.
        """
        began, self._ended_at = self._ended_at, now if alone else None
        if began is None:
            return
        self._since += 1
        if self._since <= _WARM:
            return
        if self.drafting:
            self._with.add(tokens, now - began)
            if self._with.rounds >= self._enough and self._with.tokens_per_s < self._plainly():
                self._change()
            return
        self._without.add(tokens, now - began)
        if self._since == _WARM + _PLAIN:
            behind = self._plainly() / self._with.tokens_per_s - 1
            if behind < 0:  # a plain step takes longer than was believed
                self._change()
            lost = (_WARM + _ENOUGH_AGAIN) * self._with.tokens_a_round * behind
            self._rest = min(max(int(lost / _TRIALS_COST), _LEAST_REST), _MOST_REST)
        elif self._since >= self._rest:
            self._with, self._enough = _Pace(), _ENOUGH_AGAIN
            self._change()

    def _plainly(self) -> float:
        """Tokens a second of plain rounds: of this text's own, once there are any."""
        if self._without.rounds >= _PLAIN:
            return self._without.tokens_per_s
        return 1 / self._plain_s()

    def _change(self) -> None:
        self.drafting, self._since = not self.drafting, 0
