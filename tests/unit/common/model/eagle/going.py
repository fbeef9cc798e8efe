"""What a draft in one call says, depth by depth: the definition of `Going`."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from common.model.eagle.head import Behind, EagleHead, Going, Guessed
from common.model.roll import Drawing
from common.model.sampling import Row, rank
from common.sampling_params import SamplingParams


def roll(head: EagleHead, texts: Seq[Behind], going: Going) -> list[Guessed]:
    """See `EagleHead.roll`."""
    draft = head.draft(texts)
    alive, counts, all_counted = [*range(len(texts))], [1.0] * len(texts), float(len(texts))
    logits, levels = draft.logits, list[Guessed]()
    for depth, (price, row_price) in enumerate(zip(going.prices, going.row_prices, strict=True)):
        ids: list[Seq[int]] = [[-1]] * len(texts)
        chances: list[Seq[float]] = [[0.0]] * len(texts)
        levels.append((ids, chances))
        for line, text in zip(logits, alive, strict=True):
            drawing = going.drawings[text] if going.drawings else None
            ids[text], chances[text] = _guessed(head, line[None], going.ranks, drawing, depth)
            counts[text] *= min(chances[text][0] * going.factors[text][depth], 1.0)
            all_counted += counts[text]
        followed = [
            (place, text)
            for place, text in enumerate(alive)
            if depth + 1 < going.tokens[text] and counts[text] >= going.least
        ]
        alive = [text for _, text in followed]
        if sum(counts[text] for text in alive) <= all_counted * (price + len(alive) * row_price):
            break
        parents = [place for place, _ in followed]
        logits = draft.further(parents, [ids[text][0] for text in alive])
    return levels


def _guessed(
    head: EagleHead, logits: Tensor, ranks: int, drawing: Drawing | None, depth: int
) -> tuple[Seq[int], Seq[float]]:
    """What a row guesses. # [1, W]"""
    if drawing is None or not drawing.temperature:
        ids, chances = head.top(logits, ranks)
        return ids[0], chances[0]
    params = SamplingParams(
        temperature=drawing.temperature,
        top_k=drawing.top_k,
        top_p=drawing.top_p,
        min_p=drawing.min_p,
        seed=drawing.seed,
    )
    (best,) = rank(head.spread(logits), [Row(params, drawing.position + depth)], ranks)
    weights = (-min(drawing.temperature, 1.0) * torch.tensor(best.behind)).exp()
    return best.ids, (weights / weights.sum()).tolist()
