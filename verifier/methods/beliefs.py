"""What is believed of members of a hybrid, and how it follows what is seen."""

from __future__ import annotations

from dataclasses import dataclass

_PRIOR_ROUNDS = 4
_MEMORY_ROUNDS = 64

_STALE = 0.99
"""What is left each round of the weight of what is known of times that were not seen again."""


@dataclass
class Mean:
    """The mean of what was seen lately, after a belief."""

    value: float
    weight: float = _PRIOR_ROUNDS
    at: int = 0
    """The round up to which it was aged."""

    def age(self, round_: int) -> None:
        """Lets what was seen before a round count less."""
        self.weight = max(_STALE ** (round_ - self.at) * self.weight, _PRIOR_ROUNDS)
        self.at = round_

    def add(self, seen: float) -> None:
        """Takes what was seen."""
        self.weight = min(self.weight + 1, _MEMORY_ROUNDS)
        self.value += (seen - self.value) / self.weight


class Leaning:
    """How much more or less comes than is expected: of one member in one text, say."""

    _PRIOR = 10.0
    _FORGET = 0.97

    def __init__(self) -> None:
        self._came = self._expected = 0.0

    @property
    def factor(self) -> float:
        """What came over what was expected to."""
        return (self._came + self._PRIOR) / (self._expected + self._PRIOR)

    def add(self, came: float, expected: float) -> None:
        """Takes a round that the member took part in."""
        self._came, self._expected = self._came + came, self._expected + expected

    def fade(self) -> None:
        """Ends a round: what is long past no longer speaks against a member."""
        self._came, self._expected = self._FORGET * self._came, self._FORGET * self._expected
