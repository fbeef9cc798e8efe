"""Whether something makes decoding faster: found by doing with and without it in turns.

What a measure costs shows in no account of rows and tokens alone, so tokens a second decide. The
loser is tried again now and then, the seldomer the longer it has lost.
"""

from __future__ import annotations

_SMOOTHING = 0.5
_TRY_AFTER, _TRY_AFTER_MOST = 16, 128
"""Windows before the mode that lost is tried again: at first, and when it has lost often."""


class Contest:
    """Two modes, with and without, tried for a window at a time."""

    def __init__(self) -> None:
        self.rates: dict[bool, float] = {}
        """Tokens a second in each."""
        self._left = self._rest = _TRY_AFTER  # windows before the next trial

    def next_mode(self) -> bool:
        """Whether to go on with it in the next window."""
        for mode in (True, False):
            if mode not in self.rates:
                return mode
        return self._best if self._left > 0 else not self._best

    def learn(self, mode: bool, rate: float) -> None:
        """Takes a window.

        Args:
            mode: In which it was.
            rate: Tokens a second.
        """
        trial = len(self.rates) == 2 and mode != self._best
        previous = self.rates.get(mode, rate)
        self.rates[mode] = previous + _SMOOTHING * (rate - previous)
        self._left -= 1
        if trial:
            won = mode == self._best
            self._rest = _TRY_AFTER if won else min(2 * self._rest, _TRY_AFTER_MOST)
            self._left = self._rest

    @property
    def _best(self) -> bool:
        """The mode with the higher rate."""
        return self.rates[True] >= self.rates[False]
