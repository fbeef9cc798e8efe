"""How far predictions can be trusted: what a chance was said to be against what came.

Every candidate whose place the text reached is a test, drafted or not, and so is what was thought
too unlikely to come next: the text says what stood there. So nothing has to be tried out to learn
that it has become worthwhile again.
"""

from __future__ import annotations

_PRIOR_TESTS = 8.0
_MOST_TESTS = 512.0
_BINS = 10

Bucket = tuple[int, int, int]
"""Predictions that are trusted alike: origin, context length, tenth of the raw chance."""


class Calibration:
    """Rates of predictions that came true, shared by all sequences of a proposer."""

    def __init__(self) -> None:
        self._seen: dict[Bucket, list[float]] = {}  # tests passed, tests

    def bucket(self, origin: int, length: int, raw: float) -> Bucket:
        """Where a prediction belongs."""
        return origin, length, int(raw * _BINS)

    def chance(self, bucket: Bucket, raw: float) -> float:
        """The chance that a prediction comes true.

        Args:
            bucket: Where it belongs.
            raw: What the counts alone say.
        """
        seen = self._seen.get(bucket)
        if seen is None:
            return raw
        return (seen[0] + _PRIOR_TESTS * raw) / (seen[1] + _PRIOR_TESTS)

    def test(self, bucket: Bucket, *, passed: bool) -> None:
        """Takes a prediction whose truth has come out."""
        seen = self._seen.setdefault(bucket, [0.0, 0.0])
        seen[0] += passed
        seen[1] += 1
        if seen[1] > _MOST_TESTS:
            seen[0], seen[1] = seen[0] / 2, seen[1] / 2


class Trust:
    """How one sequence differs from the others: a factor on all its chances."""

    _PRIOR = 4.0
    _FORGET = 0.95
    _LEAST, _MOST = 0.1, 1.5

    def __init__(self) -> None:
        self._passed = self._expected = 0.0

    @property
    def factor(self) -> float:
        """What came true over what was expected to."""
        factor = (self._passed + self._PRIOR) / (self._expected + self._PRIOR)
        return min(max(factor, self._LEAST), self._MOST)

    def test(self, chance: float, *, passed: bool) -> None:
        """Takes a prediction, with its chance before this factor."""
        self._passed += passed
        self._expected += chance

    def age(self) -> None:
        """Ends a round."""
        self._passed *= self._FORGET
        self._expected *= self._FORGET
