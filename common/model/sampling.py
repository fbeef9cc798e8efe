"""From logits to a token id: Hugging Face's warpers, in its order, then keyed noise.

    logit bias → repetition penalty → temperature → top-k → top-p → min-p → argmax(· + Gumbel)

The id of a row is a pure function of that row, bit for bit, whatever rows stand beside it
and whichever path computes it. That holds by construction: every floating-point operation
is elementwise (their bits do not depend on the place in a tensor), every reduction is a
maximum or a sum of integers.

On a CPU compiled code finds the same ids several times as fast, and leaves a row to what is here
where bits would decide that it does not compute the same way. On CUDA kernels draw every row
(`common.model.cuda.draw`), and the host does not wait for the device.

The noise is `common.model.noise`'s; what is done with the ids is the acceptance rule's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.model.adjust import adjust
from common.model.cuda.device import Draw, drawer
from common.model.cuda.drawings import packed
from common.model.native import draw, instructions
from common.model.noise import gumbel_of, gumbel_rows
from common.model.output import rows_of
from common.model.row import Row
from common.model.transfer import fetched, on_device
from common.model.warpers import cuts, scale, survivors
from common.sampling_params import SamplingParams


def sample(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Chooses one token id a row.

    Args:
        logits: Any floating-point type. # [N, V]
        rows: What each row's choice depends on, one a row.

    Returns:
        Ids, int64, on the device of logits; the lowest id on a tie. # [N]
    """
    assert logits.ndim == 2
    assert logits.shape[0] == len(rows)
    draws = drawer(logits.device)
    if draws is not None and rows:
        return _drawn(draws, logits, rows, 1)[0][:, 0]
    if not compiled_for(logits) or all(row.bare for row in rows):
        return _sample(adjust(logits, rows), rows)
    best, _ = draw(logits.float().contiguous(), [row.drawing for row in rows], 2)
    chosen = best[:, 0]
    for i in (chosen < 0).nonzero()[0].tolist():
        chosen[i] = _sample(*_adjusted_row(logits, rows, i))[0]
    return torch.from_numpy(chosen)


class Ranked(NamedTuple):
    """A row's choice and the tokens that come closest to it, the best first."""

    ids: Sequence[int]
    """They."""

    behind: Sequence[float]
    """How much less each one's score is than the choice's; a score is what the choice maximises."""


def rank(logits: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    """Chooses as `sample` does, and says which tokens come closest.

    Args:
        logits: Any floating-point type. # [N, V]
        rows: What each row's choice depends on, one a row.
        count: How many are wanted of each row, the choice among them.

    Returns:
        Up to `count` a row; fewer where the warpers leave fewer.
    """
    draws = drawer(logits.device)
    if draws is not None and rows:
        ids, behind = (found.tolist() for found in fetched(*_drawn(draws, logits, rows, count)))
        counts = [line.index(-1) if -1 in line else count for line in ids]
        lines = zip(ids, behind, counts, strict=True)
        return [Ranked(tokens[:known], gaps[:known]) for tokens, gaps, known in lines]
    if not rows or not compiled_for(logits):
        return _rank(adjust(logits, rows), rows, count)
    drawings = [row.drawing for row in rows]
    best, scores = draw(logits.float().contiguous(), drawings, max(count, 2))
    known = (best >= 0)[:, :count].sum(1).tolist()
    return [
        Ranked(ids[:few], [line[0] - score for score in line[:few]])
        if ids[0] >= 0
        else _rank(*_adjusted_row(logits, rows, i), count)[0]
        for i, (ids, line, few) in enumerate(
            zip(best.tolist(), scores.tolist(), known, strict=True)
        )
    ]


def _adjusted_row(logits: Tensor, rows: Sequence[Row], at: int) -> tuple[Tensor, Sequence[Row]]:
    """One of some rows, by itself: its logits, adjusted, and what else decides. # [1, V]"""
    row = rows[at : at + 1]
    return adjust(logits[at : at + 1], row), row


def _kinds(rows: Sequence[Row], vocab_size: int) -> list[tuple[str, list[int]]]:
    """Indices of the rows by what their choice takes."""
    kinds: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        kind = "cut" if cuts(row.params, vocab_size) else "whole"
        if row.params.greedy:
            kind = "greedy"
        kinds.setdefault(kind, []).append(i)
    return [*kinds.items()]


def _drawn(draws: Draw, logits: Tensor, rows: Sequence[Row], count: int) -> tuple[Tensor, Tensor]:
    """The best tokens of every row, drawn on the device, and how far they are behind the best.

    The host waits for none of it; -1 where no more survive. # [N, count] each
    """
    ids = torch.empty(len(rows), count, dtype=torch.int64, device=logits.device)
    behind = torch.empty_like(ids, dtype=torch.float32)
    bare = all(row.bare for row in rows)
    drawings = packed([] if bare else [row.drawing for row in rows], len(rows))
    with torch.cuda.device_of(logits):  # Triton launches on the device that is the thread's
        draws(logits.contiguous(), on_device(drawings, logits.device), ids, behind)
    return ids, behind


def compiled_for(logits: Tensor) -> bool:
    """Whether compiled code draws from them.

    It leaves out noise that cannot decide, and says where bits would that it does not have in
    common with torch: so which of both is at work shows in the time alone.
    """
    return logits.device.type == "cpu" and bool(instructions())


def _sample(adjusted: Tensor, rows: Sequence[Row]) -> Tensor:
    """Chooses one token id a row, by torch."""
    chosen = torch.empty(len(rows), dtype=torch.int64, device=adjusted.device)
    for kind, group in _kinds(rows, adjusted.shape[1]):
        chosen[group] = _CHOOSE[kind](rows_of(adjusted, group), [rows[i] for i in group])
    return chosen


def _greedy(adjusted: Tensor, rows: Sequence[Row]) -> Tensor:
    if adjusted.device.type != "cpu":
        return _numbers(adjusted).argmax(-1)
    scores = adjusted.numpy()
    best = scores.argmax(-1)  # several times as fast as torch's
    if np.isnan(scores[np.arange(len(best)), best]).any():
        best = _numbers(adjusted).numpy().argmax(-1)
    return torch.from_numpy(best)


def _numbers(adjusted: Tensor) -> Tensor:
    """What is no number is the least, as for compiled code and kernels."""
    return adjusted.nan_to_num(-math.inf, math.inf, -math.inf)


def _among_all(adjusted: Tensor, rows: Sequence[Row]) -> Tensor:
    """Samples rows that no warper cuts."""
    return _noisy(adjusted, rows).argmax(-1)


def _among_survivors(adjusted: Tensor, rows: Sequence[Row]) -> Tensor:
    """Samples rows that some warper cuts."""
    best = [tokens[scores.argmax()] for tokens, scores in _noisy_survivors(adjusted, rows)]
    return torch.tensor(np.array(best, dtype=np.int64), device=adjusted.device)


def _rank(adjusted: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    """Ranks the tokens of each row, by torch."""
    ranked = [Ranked((), ())] * len(rows)
    for kind, group in _kinds(rows, adjusted.shape[1]):
        found = _RANK[kind](rows_of(adjusted, group), [rows[i] for i in group], count)
        for i, one in zip(group, found, strict=True):
            ranked[i] = one
    return ranked


def _rank_likeliest(adjusted: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    return _rank_scores(_numbers(adjusted), rows, count)


def _rank_scores(scores: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    bars = scores.topk(min(count, scores.shape[1])).values[:, -1]
    ranked = []
    for line, bar in zip(scores, bars, strict=True):
        ids = (~(line < bar)).nonzero()[:, 0]
        best = line[ids].double().sort(descending=True, stable=True)  # of equal ones the lowest
        known = min(count, max(int((best.values > -math.inf).sum()), 1))
        behind = best.values[0] - best.values[:known]
        ranked.append(Ranked(ids[best.indices[:known]].tolist(), behind.tolist()))
    return ranked


def _rank_all(adjusted: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    return _rank_scores(_noisy(adjusted, rows), rows, count)


def _rank_survivors(adjusted: Tensor, rows: Sequence[Row], count: int) -> list[Ranked]:
    ranked = []
    for tokens, scores in _noisy_survivors(adjusted, rows):
        order = np.argsort(-scores, kind="stable")[:count]
        behind = scores[order[0]] - scores[order]
        ranked.append(Ranked(tokens[order].tolist(), behind.tolist()))
    return ranked


_CHOOSE = {"greedy": _greedy, "whole": _among_all, "cut": _among_survivors}
_RANK = {"greedy": _rank_likeliest, "whole": _rank_all, "cut": _rank_survivors}


def _noisy(adjusted: Tensor, rows: Sequence[Row]) -> Tensor:
    """Scores of rows that no warper cuts: noise for the whole vocabulary. # float64 [G, V]"""
    noise = gumbel_rows(*_keys(rows), adjusted.shape[1], adjusted.device)
    return noise.add_(scale(adjusted, _params(rows)))


def _noisy_survivors(
    adjusted: Tensor, rows: Sequence[Row]
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Ids that survive, rising, and their scores: noise for few tokens only."""
    found = survivors(adjusted, _params(rows))
    noise = gumbel_of([tokens for tokens, _ in found], *_keys(rows), adjusted.shape[1])
    return [(tokens, values + line) for line, (tokens, values) in zip(noise, found, strict=True)]


def _keys(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    return [row.params.seed for row in rows], [row.position for row in rows]


def _params(rows: Sequence[Row]) -> list[SamplingParams]:
    return [row.params for row in rows]
