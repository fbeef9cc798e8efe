"""What decides a token beside its logits."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from common.model.roll import Adjusting, Drawing
from common.sampling_params import SamplingParams


class Row(NamedTuple):
    """What decides the token at one place of one sequence, beside its logits."""

    params: SamplingParams
    """The request's sampling."""

    position: int
    """Absolute position of the token being chosen."""

    seen: Tensor | None = None
    """Ids of prompt and committed tokens, bool [V]; needed for a repetition penalty only."""

    path: tuple[int, ...] = ()
    """Ids after the committed ones: a tree node's ancestors and itself; seen as well."""

    @property
    def bare(self) -> bool:
        """Whether the token is the likeliest by the logits as they are."""
        return self.params.greedy and not self.params.adjusts

    @property
    def drawing(self) -> Drawing:
        """What compiled code and kernels need to know."""
        params, adjusting = self.params, None
        if params.adjusts:
            assert self.seen is not None or not params.penalises, "a penalty needs the tokens seen"
            seen = self.seen if params.penalises else None
            added = biases_of(params, torch.device("cpu"))
            adjusting = Adjusting(*added, params.repetition_penalty, seen, self.path)
        warpers = (params.top_k, params.temperature, params.top_p, params.min_p)
        return Drawing(params.seed, self.position, *warpers, adjusting)


@lru_cache(maxsize=64)
def biases_of(params: SamplingParams, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids that have a logit bias, and the biases; not to be changed. # [B] each

    Every row of a text asks for the same, and to make them takes longer than to add them.
    """
    biases = params.logit_bias
    values = torch.tensor([*biases.values()], dtype=torch.float32, device=device)
    return torch.tensor([*biases], dtype=torch.int64, device=device), values
