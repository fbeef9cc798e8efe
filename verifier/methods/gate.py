"""Whether drafts pay while several sequences run: found by trying both.

What a drafter costs beside others is more than its rows: it may share processors and memory with
the target, and sequences that wait for it fall out of step. None of that shows in the time of a
step. So with two or more sequences drafting is switched on and off for short windows, tokens a
second decide, and the loser is tried again now and then. One sequence alone is left to
`draft_length`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW_S = 0.3
_SMOOTHING = 0.5
_TRY_EVERY = 16
"""Windows between two trials of the mode that lost."""


@dataclass
class _Level:
    """What is known of one load."""

    rates: dict[bool, float] = field(default_factory=dict)  # tokens/s with and without drafts
    windows: int = 0

    def next_mode(self) -> bool:
        """Whether to draft in the next window."""
        self.windows += 1
        for mode in (True, False):
            if mode not in self.rates:
                return mode
        best = self.rates[True] >= self.rates[False]
        return best if self.windows % _TRY_EVERY else not best

    def learn(self, mode: bool, rate: float) -> None:
        previous = self.rates.get(mode, rate)
        self.rates[mode] = previous + _SMOOTHING * (rate - previous)


class Gate:
    """Decides for all sequences of a proposer together."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._level = 0  # of the window now open; 0 where there is none
        self._mode = True
        self._since = 0.0
        self._tokens = 0

    def drafting(self, sequences: int, now: float) -> bool:
        """Whether to draft.

        Args:
            sequences: That could.
            now: Seconds, of the monotonic clock.
        """
        level = sequences.bit_length()
        if sequences < 2:
            self._level = 0
            return True
        if level != self._level:  # what was counted so far belongs to no load
            self._start(level, now)
        elif now - self._since >= _WINDOW_S:
            if now - self._since < 2 * _WINDOW_S:  # else nobody was there for part of it
                self._levels[level].learn(self._mode, self._tokens / (now - self._since))
            self._start(level, now)
        return self._mode

    def count(self, tokens: int) -> None:
        """Takes note of tokens committed."""
        self._tokens += tokens

    def _start(self, level: int, now: float) -> None:
        self._mode = self._levels.setdefault(level, _Level()).next_mode()
        self._level, self._since, self._tokens = level, now, 0
