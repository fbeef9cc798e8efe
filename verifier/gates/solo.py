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
"""Rounds before it is tried again: the more it loses by, the more."""

_TRIALS_COST = 0.01
"""Share of the tokens in between that a trial may cost."""

_CLEARLY = 0.97
"""It is left off where it brings less than so much of what plain rounds do: else it may be luck."""

_FORGET = 0.97
_FAR = 3.0
"""A pass that took more than so many times what is usual counts as if it had taken that."""


class _Pace:
    """Tokens a second, of late.

    Args:
        usual_s: What the first pass is about to take, in seconds.
    """

    def __init__(self, usual_s: float) -> None:
        self.rounds = 0
        self._usual_s = usual_s
        self._weight = self._tokens = self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds

    @property
    def tokens_a_round(self) -> float:
        return self._tokens / self._weight

    def add(self, tokens: int, seconds: float, passes: int) -> None:
        """Takes a round, which several passes may have been."""
        self.rounds += 1
        self._weight = _FORGET * self._weight + 1
        self._tokens = _FORGET * self._tokens + tokens
        seconds = min(max(seconds, 1e-9), _FAR * passes * self._usual_s)
        self._seconds = _FORGET * self._seconds + seconds
        self._usual_s = self._seconds / self._weight


class Solo:
    """Decides for one text.

    Args:
        plain_s: What a plain step is believed to take, in seconds.
    """

    def __init__(self, plain_s: Callable[[], float]) -> None:
        self.drafting = True
        """Whether its method is to draft."""
        self._plain_s = plain_s
        self._with, self._without = _Pace(2 * plain_s()), _Pace(plain_s())
        self._since = 0  # passes, since that changed
        self._enough, self._rest = _ENOUGH, _LEAST_REST
        self._ended_at: float | None = None

    def ended(
        self, tokens: int, now: float, *, drafted: bool, alone: bool, passes: int = 1
    ) -> None:
        """Takes a round.

        Args:
            tokens: That it committed.
            now: When it ended, in seconds of the monotonic clock.
            drafted: Whether its method was asked in it: others may have left it off, too.
            alone: Whether no other text was computed; of others, gates are for.
            passes: That it was.
        """
        began, self._ended_at = self._ended_at, now if alone else None
        if began is None or not alone or drafted != self.drafting:
            return
        self._since += passes
        if self._since <= _WARM:
            return
        if self.drafting:
            self._with.add(tokens, now - began, passes)
            least = _CLEARLY * self._plainly()
            if self._with.rounds >= self._enough and self._with.tokens_per_s < least:
                self._without = _Pace(self._plain_s())
                self._change()
            return
        self._without.add(tokens, now - began, passes)
        if self._without.rounds == _PLAIN:
            behind = self._plainly() / self._with.tokens_per_s - 1
            if behind < 0:  # a plain step takes longer than was believed
                self._try_again()
                return
            lost = (_WARM + _ENOUGH_AGAIN) * self._with.tokens_a_round * behind
            self._rest = min(max(int(lost / _TRIALS_COST), _LEAST_REST), _MOST_REST)
        elif self._since >= self._rest:
            self._try_again()

    def _plainly(self) -> float:
        """Tokens a second of plain rounds: of this text's own, once there are any."""
        if self._without.rounds >= _PLAIN:
            return self._without.tokens_per_s
        return 1 / self._plain_s()

    def _try_again(self) -> None:
        self._with, self._enough = _Pace(2 * self._plain_s()), _ENOUGH_AGAIN
        self._change()

    def _change(self) -> None:
        self.drafting, self._since = not self.drafting, 0
