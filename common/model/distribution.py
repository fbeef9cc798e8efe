"""What a token is sampled from, as numbers: for the rules of acceptance that compare chances.

What is sampled itself needs none of them, see `common.model.sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from common.model import native
from common.model.adjust import adjust
from common.model.row import Row
from common.model.sampling import compiled_for
from common.model.warpers import survivors


class Distribution(NamedTuple):
    """What a row is sampled from."""

    ids: NDArray[np.int64]
    """Tokens that may come, rising. # [K]"""

    chances: NDArray[np.float64]
    """Of each; they add up to 1. # [K]"""

    def chance(self, token: int) -> float:
        """Of one token."""
        at = int(self.ids.searchsorted(token))
        return float(self.chances[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def at(self, share: float) -> int:
        """The token up to which so much of all chances stands, in the order of ids.

        Args:
            share: In (0, 1); uniform where a token is to be drawn.
        """
        upto = self.chances.cumsum()
        at = int(upto.searchsorted(share * upto[-1], "right"))
        if at == len(upto):  # rounded to all of them: the last token that may come
            at = int(self.chances.nonzero()[0][-1])
        return int(self.ids[at])


def distributions(logits: Tensor, rows: Sequence[Row]) -> list[Distribution]:
    """What `sample` draws from.

    Args:
        logits: Any floating-point type. # [N, V]
        rows: What each row's choice depends on, one a row; at least one, and none greedy.

    Returns:
        One a row.
    """
    assert not any(row.params.greedy for row in rows)
    return [Distribution(tokens, _chances(scores)) for tokens, scores in _survivors(logits, rows)]


def _chances(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax, in one array: of a large vocabulary the system gives and takes each page by page."""
    chances = scores.astype(np.float64)
    chances -= scores.max()
    np.exp(chances, out=chances)
    chances /= chances.sum()
    return chances


def _survivors(
    logits: Tensor, rows: Sequence[Row]
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Ids that survive, rising, and their warped logits: by compiled code, where that is sure."""
    if not compiled_for(logits):
        return survivors(adjust(logits, rows), [row.params for row in rows])
    drawings = [row.drawing for row in rows]
    scaled, sure = native.survivors(logits.float().contiguous(), drawings)
    found = []
    for i, line in enumerate(scaled):
        if sure[i]:
            tokens = np.flatnonzero(line > -np.inf)
            found.append((tokens, line[tokens]))
        else:
            found += survivors(adjust(logits[i : i + 1], rows[i : i + 1]), [rows[i].params])
    return found
