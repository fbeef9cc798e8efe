"""Which rows of a roll go on, found on the host; the CPU's compiled code finds it by itself."""

from __future__ import annotations

from bisect import bisect
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
        if self._limits:
            tokens = ids[:, 0].tolist()
            self.alive = [row for row in self.alive if not self._over(row, tokens[row])]
        if self._certainty is not None:
            self.alive = self._likely(self._certainty, behind[:, 1].tolist())
        self._level += 1
        return found, behind

    def _over(self, row: int, token: int) -> bool:
        """Whether a row's text ends with a token."""
        limit = self._limits[row]
        return self._level + 1 >= limit.tokens or token in limit.stops

    def _likely(self, certainty: Certainty, leads: Sequence[float]) -> list[int]:
        """Rows that have not gone far enough.

        Rows are few, and no pass runs meanwhile: numpy would take longer for one row than this does
        for ten.

        Args:
            certainty: Of their tokens.
            leads: How far the best score is ahead of the second, `[M]`.
        """
        bounds, chances, leasts, tokens, _ = certainty
        found = []
        for row in self.alive:
            token, least = tokens[row] + self._level, leasts[row]
            if token >= 0:
                self._right[row] *= chances[row][bisect(bounds, leads[row])]
                if least and self._right[row] < least[min(token, len(least) - 1)]:
                    continue
            found.append(row)
        return found
