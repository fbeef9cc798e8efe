"""Which slots of the cache hold a drafting head's keys, and of which text.

Slots are the target's: it fills them for every text, the head only for those whose states it was
shown, and blocks go from one text to the next. So each slot is marked with what stands there: a sum
over the ids up to the token that its key was made with. A slot that bears another mark is not
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

_FACTOR = 0x9E3779B97F4A7C15
"""Odd, so that no power of it is 0."""


class TextMarks:
    """The marks of a text's positions.

    Args:
        most: Tokens that it may have.
    """

    def __init__(self, most: int) -> None:
        factors = np.full(most, _FACTOR, dtype=np.uint64)
        self._powers = np.multiply.accumulate(factors)
        self._sums = np.zeros(most, dtype=np.uint64)
        self._known = 0

    def extend(self, ids: Seq[int]) -> None:
        """Takes the text as it is now, which has only grown.

        Args:
            ids: All of it.
        """
        first, self._known = self._known, len(ids)
        new = np.asarray(ids[first:], dtype=np.uint64) + np.uint64(1)
        new *= self._powers[first : self._known]
        if first:
            new[:1] += self._sums[first - 1]
        np.add.accumulate(new, out=self._sums[first : self._known])

    def of(self, start: int, end: int) -> NDArray[np.uint64]:
        """Of the keys at positions from `start` to before `end`, each made with the token after
        it."""
        return self._sums[start + 1 : end + 1]


class HeadKeys:
    """What the slots of a cache hold.

    Args:
        slots: How many there are.
    """

    def __init__(self, slots: int) -> None:
        self._marks = np.zeros(slots, dtype=np.uint64)

    def wrote(self, slots: NDArray[np.int64], marks: NDArray[np.uint64]) -> None:
        """Takes note of keys that were written."""
        self._marks[slots] = marks

    def there(self, slots: NDArray[np.int64], marks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which slots hold the keys of a text."""
        found: NDArray[np.bool_] = self._marks[slots] == marks
        return found
