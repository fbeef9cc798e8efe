"""Which rows of a roll go on, found on the host; the CPU's compiled code finds it by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.model.roll import Certainty, Limit


class Course:
    """Follows the rows of a roll from level to level.

    Args:
        rows: M.
        certainty: Of their tokens; where it is low, a row goes no further.
        limits: When the text is over that a row is the end of, `[M]`; none where no row is.
    """

    def __init__(self, rows: int, certainty: Certainty | None, limits: Sequence[Limit]) -> None:
        self._certainty, self._limits = certainty, limits
        self._right = list(certainty.right) if certainty is not None else []
        self._level = 0
        self.alive = list(range(rows))
        """Rows that go on."""

    def take(self, ids: np.ndarray, behind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Takes the tokens after a level's rows, and ends those that go no further.

        Args:
            ids: The best first, `[M, best]`.
            behind: How much less their scores are than the best, `[M, best]`.

        Returns:
            Both as they came, but for the ids of rows that had ended before: -1.
        """
        found = np.full_like(ids, -1)
        found[self.alive] = ids[self.alive]
        self.alive = [
            row
            for row in self.alive
            if not self._over(row, int(ids[row, 0])) and not self._unlikely(row, behind)
        ]
        self._level += 1
        return found, behind

    def _over(self, row: int, token: int) -> bool:
        """Whether a row's text ends with a token."""
        if not self._limits:
            return False
        limit = self._limits[row]
        return self._level + 1 >= limit.tokens or token in limit.stops

    def _unlikely(self, row: int, behind: np.ndarray) -> bool:
        """Whether a row has gone far enough."""
        if self._certainty is None:
            return False
        token = self._certainty.tokens[row] + self._level
        if token < 0:
            return False
        place = np.searchsorted(self._certainty.bounds, behind[row, 1], "right")
        self._right[row] *= self._certainty.chances[row][place]
        least = self._certainty.least[row]
        return bool(least) and self._right[row] < least[min(token, len(least) - 1)]
