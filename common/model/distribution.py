"""What a token is sampled from, as numbers: for the rules of acceptance that compare chances.

What is sampled itself needs none of them, see `common.model.sampling`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.model import native
from common.model.adjust import adjust
from common.model.output import rows_of
from common.model.row import Row
from common.model.sampling import compiled_for
from common.model.transfer import on_device
from common.model.tree import Drawn
from common.model.warpers import cuts, scale, survivors


class Distribution(ABC):
    """What a row is sampled from."""

    @abstractmethod
    def chance(self, token: int) -> float:
        """Of one token."""

    @abstractmethod
    def entropy(self) -> float:
        """In nats."""

    @abstractmethod
    def at(self, share: float) -> int:
        """The token up to which so much of all chances stands, in the order of ids.

        Args:
            share: In (0, 1); uniform where a token is to be drawn.
        """

    @abstractmethod
    def without(self, drawn: Drawn) -> Distribution | None:
        """max(0, p - q), renormalised; None where nothing is left.

        Args:
            drawn: q.
        """

    @abstractmethod
    def listed(self) -> Listed:
        """The same, token by token."""


class Listed(Distribution):
    """One whose tokens are listed, on the host.

    Args:
        ids: Tokens that may come, rising. # [K]
        chances: Of each; they add up to 1. # [K]
    """

    def __init__(self, ids: NDArray[np.int64], chances: NDArray[np.float64]) -> None:
        self.ids, self.chances = ids, chances

    def chance(self, token: int) -> float:
        """See `Distribution`."""
        at = int(self.ids.searchsorted(token))
        return float(self.chances[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def entropy(self) -> float:
        """See `Distribution`."""
        return -float(self.chances @ np.log(self.chances + 1e-300))

    def at(self, share: float) -> int:
        """See `Distribution`."""
        upto = self.chances.cumsum()
        at = int(upto.searchsorted(share * upto[-1], "right"))
        if at == len(upto):  # rounded to all of them: the last token that may come
            at = int(self.chances.nonzero()[0][-1])
        return int(self.ids[at])

    def without(self, drawn: Drawn) -> Listed | None:
        """See `Distribution`."""
        tokens, left = np.array(drawn.ids), self.chances.copy()
        at = self.ids.searchsorted(tokens).clip(max=len(self.ids) - 1)
        common = self.ids[at] == tokens
        left[at[common]] -= np.array(drawn.probabilities)[common]
        left.clip(min=0, out=left)
        total = float(left.sum())
        return Listed(self.ids, left / total) if total > _NOTHING else None

    def listed(self) -> Listed:
        """See `Distribution`."""
        return self


class Whole(Distribution):
    """One of the whole vocabulary, where the logits are: of all its chances few are asked for.

    Args:
        scores: Logarithms of chances, but for what is added to all. # float32 or float64 [V]
        total: The logarithm of what their exponentials add up to.
    """

    def __init__(self, scores: Tensor, total: float) -> None:
        self._scores, self._total = scores, total

    def chance(self, token: int) -> float:
        """See `Distribution`."""
        return math.exp(float(self._scores[token]) - self._total)

    def entropy(self) -> float:
        """See `Distribution`."""
        return float(torch.special.entr(self._chances()).sum())

    def at(self, share: float) -> int:
        """See `Distribution`."""
        upto = self._chances().cumsum(0)
        at = int(torch.searchsorted(upto, share * upto[-1:], right=True))
        return at if at < len(upto) else int(self._chances().nonzero()[-1])

    def without(self, drawn: Drawn) -> Whole | None:
        """See `Distribution`."""
        left = self._chances()
        tokens, gone = np.array(drawn.ids), np.array(drawn.probabilities)
        known = tokens < len(left)
        at = on_device(tokens[known], left.device)
        left[at] -= on_device(gone[known], left.device, torch.float64)
        total = float(left.clamp_(min=0).sum())
        return Whole(left.log_(), math.log(total)) if total > _NOTHING else None

    def listed(self) -> Listed:
        """See `Distribution`."""
        chances = self._chances().cpu().numpy()
        return Listed(np.arange(len(chances)), chances)

    def _chances(self) -> Tensor:
        return (self._scores.double() - self._total).exp_()


_NOTHING = math.ulp(1.0)
"""What is left of a distribution, but for rounding, once all of it is taken away."""


def distributions(logits: Tensor, rows: Sequence[Row]) -> list[Distribution]:
    """What `sample` draws from.

    Args:
        logits: Any floating-point type. # [N, V]
        rows: What each row's choice depends on, one a row; none greedy.

    Returns:
        One a row.
    """
    assert not any(row.params.greedy for row in rows)
    cut = [cuts(row.params, logits.shape[1]) for row in rows]
    some, others = ([i for i, one in enumerate(cut) if one is kind] for kind in (True, False))
    found: dict[int, Distribution] = {}
    if some:
        left = _survivors(rows_of(logits, some), [rows[i] for i in some])
        listed = (Listed(tokens, _softmax(scores)) for tokens, scores in left)
        found |= zip(some, listed, strict=True)
    if others:
        whole = _whole(rows_of(logits, others), [rows[i] for i in others])
        found |= zip(others, whole, strict=True)
    return [found[i] for i in range(len(rows))]


def _whole(logits: Tensor, rows: Sequence[Row]) -> list[Whole]:
    """Those of rows that no warper cuts.

    Each is summed by itself: sums of several rows may add up in another order.
    """
    scores = scale(adjust(logits, rows), [row.params for row in rows])
    tops = scores.amax(-1).double()
    sums = [row.double().sub_(top).exp_().sum() for row, top in zip(scores, tops, strict=True)]
    totals = torch.stack(sums).log_().add_(tops).tolist()
    return [Whole(*each) for each in zip(scores, totals, strict=True)]


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """In one array: of a large vocabulary the system gives and takes each page by page."""
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
