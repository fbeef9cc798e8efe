"""What a draft in one call says, depth by depth: the definition of `Going`."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from common.model.adjust import adjust
from common.model.drafting_head import Going, Guessed
from common.model.keyed_head import Behind, KeyedHead
from common.model.roll import Drawing
from common.model.row import Row
from common.model.sampling import rank
from common.sampling_params import SamplingParams


def roll(head: KeyedHead, texts: Seq[Behind], going: Going) -> list[Guessed]:
    """See `KeyedHead.roll`."""
    draft = head.draft(texts)
    alive, counts, all_counted = [*range(len(texts))], [1.0] * len(texts), float(len(texts))
    logits, levels = draft.logits, list[Guessed]()
    paths: list[tuple[int, ...]] = [()] * len(texts)
    for depth, (price, row_price) in enumerate(zip(going.prices, going.row_prices, strict=True)):
        ids: list[Seq[int]] = [[-1]] * len(texts)
        chances: list[Seq[float]] = [[0.0]] * len(texts)
        levels.append((ids, chances))
        for line, text in zip(logits, alive, strict=True):
            drawing = going.drawings[text] if going.drawings else None
            row = None if drawing is None else _row(drawing, paths[text])
            ids[text], chances[text] = _guessed(head, line[None], going.ranks, row)
            paths[text] += (ids[text][0],)
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


def _row(drawing: Drawing, path: tuple[int, ...]) -> Row:
    """What decides a guess behind others."""
    params = SamplingParams(
        temperature=drawing.temperature,
        top_k=drawing.top_k,
        top_p=drawing.top_p,
        min_p=drawing.min_p,
        seed=drawing.seed,
    )
    seen, how = None, drawing.adjusting
    if how is not None:
        biases = dict(zip(how.ids.tolist(), how.biases.tolist(), strict=True))
        params = replace(params, logit_bias=biases, repetition_penalty=how.penalty)
        seen = how.seen
    return Row(params, drawing.position + len(path), seen, path)


def _guessed(
    head: KeyedHead, logits: Tensor, ranks: int, row: Row | None
) -> tuple[Seq[int], Seq[float]]:
    """What a row guesses. # [1, W]"""
    if row is None or row.params.greedy:
        if row is not None:
            logits = head.narrow(adjust(head.spread(logits), [row]))
        ids, chances = head.top(logits, ranks)
        return ids[0], chances[0]
    (best,) = rank(head.spread(logits), [row], ranks)
    weights = (-min(row.params.temperature, 1.0) * torch.tensor(best.behind)).exp()
    return best.ids, (weights / weights.sum()).tolist()
