"""How often the end of a text is looked up: where that does not pay, now and then only.

A look-up takes the engine's thread, and so everybody's time. One sequence alone loses the part of a
token by it that could have been made meanwhile; beside fifteen others that is most of what a text
gains that does not repeat itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from verifier.cost import StepCost
from verifier.pool.forecast import Forecast

_NEWS = 0.05
"""Weight of a look in what a sequence's looks gain."""

_OTHERS_NEWS = 0.02
"""Weight of it in what all sequences' do, and take."""

_FAR = 4.0
"""A look that took more than so many times what others do counts as if it had taken that."""

_BESIDE = 2.0
"""All that a look entails, indexing and planting, over itself."""

_REST = 8
"""Rounds without a look where looks do not pay."""


class Interests:
    """What looks gain and take, over all sequences of a proposer.

    Args:
        cost: Of the engine's steps.
        clock: Seconds.
    """

    def __init__(self, cost: StepCost, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cost, self.clock = cost, clock
        self.gain = 1.0
        """Tokens that a look gains, less those that its rows cost."""
        self.seconds = 0.0
        """What one takes."""

    def took(self, gain: float, seconds: float) -> None:
        """Takes a look."""
        if self.seconds:
            seconds = min(seconds, _FAR * self.seconds)
            self.seconds += _OTHERS_NEWS * (seconds - self.seconds)
        else:
            self.seconds = seconds
        self.gain += _OTHERS_NEWS * (gain - self.gain)


class Interest:
    """One sequence's.

    Args:
        others: All of them.
    """

    def __init__(self, others: Interests) -> None:
        self._others = others
        self._gain = others.gain
        self._rest = 0
        self._looked = False  # this round
        self.forecast: Forecast | None = None
        """What this round's look found."""

    def look(self, find: Callable[[], Forecast | None]) -> Forecast | None:
        """Looks, once a round and unless it is one without.

        Args:
            find: Makes the round's forecast; None where the text is not indexed yet, which says
                nothing of what a look is worth.
        """
        if not self._looked:
            self._looked = True
            self.forecast = self._look(find)
        return self.forecast

    def end_round(self, *, missed: bool = False) -> None:
        """The text went on: the next look is another.

        Args:
            missed: Whether it was not asked in rounds before, which was rest enough.
        """
        self._looked, self.forecast = False, None
        if missed:
            self._rest = 0

    def _look(self, find: Callable[[], Forecast | None]) -> Forecast | None:
        if self._rest:
            self._rest -= 1
            return None
        others, cost = self._others, self._others.cost
        began = others.clock()
        forecast = find()
        seconds = others.clock() - began
        if forecast is None:
            return None
        rate = cost.rate(1.0, cost.round_s(0))
        rows_s = cost.round_s(forecast.worth) - cost.round_s(0)
        gain = forecast.expected - rows_s * rate
        others.took(gain, seconds)
        self._gain += _NEWS * (gain - self._gain)
        if max(self._gain, gain) < _BESIDE * others.seconds * rate:
            self._rest = _REST
        return forecast
