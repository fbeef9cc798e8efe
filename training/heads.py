"""Medusa heads that can be trained, and the losses of all of them in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from common.model.medusa.heads import token_vectors
from common.model.medusa.weights import HeadWeights
from training.loss import chunks, distributions, soft_cross_entropy
from training.output import OutputLayer


class Heads(nn.Module):
    """K heads that start as copies of the base model's output layer.

    Args:
        lm_head: The base model's output matrix. # [V, d]
        num_heads: K.
        num_layers: Blocks of a head.
        own_lm: Whether each head has an output matrix of its own; else the base model's serves.
        sees_token: Whether heads see the token that was chosen from the state.
    """

    def __init__(
        self,
        lm_head: Tensor,
        *,
        num_heads: int,
        num_layers: int,
        own_lm: bool,
        sees_token: bool = False,
    ) -> None:
        super().__init__()
        size = lm_head.shape[1]
        self.blocks = nn.ModuleList(
            nn.ModuleList(_zero(nn.Linear(size, size)) for _ in range(num_layers))
            for _ in range(num_heads)
        )
        self.tokens = nn.ParameterList(
            torch.zeros(size, size) for _ in range(num_heads if sees_token else 0)
        )
        start = lm_head.detach().float()
        self.lm = nn.ParameterList(start.clone() for _ in range(num_heads if own_lm else 0))

    @classmethod
    def of(cls, weights: HeadWeights, lm_head: Tensor) -> Heads:
        """Heads to be measured, in float32. # lm_head [V, d]"""
        heads = cls(
            lm_head,
            num_heads=weights.num_heads,
            num_layers=weights.num_layers,
            own_lm=weights.lm is not None,
            sees_token=weights.token is not None,
        )
        with torch.no_grad():
            for head in range(len(heads)):
                for layer, module in enumerate(heads._layers(head)):
                    module.weight.copy_(weights.block[head, layer])
                    module.bias.copy_(weights.bias[head, layer])
                if weights.lm is not None:
                    heads.lm[head].copy_(weights.lm[head])
                if weights.token is not None:
                    heads.tokens[head].copy_(weights.token[head])
        return heads.to(lm_head.device).requires_grad_(False)

    def __len__(self) -> int:
        return len(self.blocks)

    def logits(self, head: int, hidden: Tensor, chosen: Tensor, lm_head: Tensor) -> Tensor:
        """One head's logits, as they are when it serves: without the base model's scale or cap.

        Args:
            head: Its number.
            hidden: States after the final norm. # [..., d]
            chosen: The tokens that follow them. # [...]
            lm_head: The base model's output matrix. # [V, d]

        Returns:
            # [..., V]
        """
        x = hidden
        for number, layer in enumerate(self._layers(head)):
            inner = layer(x)
            if number == 0 and len(self.tokens):
                vectors = token_vectors(lm_head.detach(), chosen).to(x.dtype)
                inner = inner + F.linear(vectors, self.tokens[head])
            x = x + F.silu(inner)
        return F.linear(x, self.lm[head] if len(self.lm) else lm_head.to(x.dtype))

    def _layers(self, head: int) -> list[nn.Linear]:
        layers: Any = self.blocks[head]
        return list(layers)

    def weights(self) -> HeadWeights:
        """The weights in the form that is saved."""
        layers = [self._layers(head) for head in range(len(self))]
        return HeadWeights(
            block=torch.stack([torch.stack([m.weight for m in head]) for head in layers]),
            bias=torch.stack([torch.stack([m.bias for m in head]) for head in layers]),
            lm=torch.stack(list(self.lm)) if len(self.lm) else None,
            token=torch.stack(list(self.tokens)) if len(self.tokens) else None,
            tree=None,
        )


def backward(
    heads: Heads,
    ids: Tensor,
    hidden: Tensor,
    lm_head: Tensor,
    teacher_hidden: Tensor,
    teacher_output: OutputLayer,
    scales: Sequence[float],
    accelerator: Accelerator,
) -> list[float]:
    """Losses of all heads, each followed by its backward pass before the next one's logits.

    Head i is to give, at position t, the teacher's distribution of the token at t + 2 + i.

    Args:
        heads: What is trained.
        ids: The text. # [B, T]
        hidden: States after the final norm; a leaf, whose gradient adds up where it has one.
            # [B, T, d]
        lm_head: Output matrix for heads without their own. # [V, d]
        teacher_hidden: The teacher's states of the same text. # [B, T, d]
        teacher_output: Makes its logits of them.
        scales: Each head's factor in the loss.
        accelerator: Runs the passes.

    Returns:
        Each head's mean loss, without its factor.
    """
    length = hidden.shape[1]
    losses = [0.0] * len(heads)
    for part, share in chunks(hidden):
        labels = distributions(teacher_hidden[part], teacher_output, accelerator)
        for head, scale in enumerate(scales):
            with accelerator.autocast():
                seen = hidden[part, : length - 1 - head].flatten(0, 1)
                chosen = ids[part, 1 : length - head].flatten()
                logits = heads.logits(head, seen, chosen, lm_head)
            loss = soft_cross_entropy(logits, labels[:, head + 1 :].flatten(0, 1))
            accelerator.backward(loss * (scale * share))
            losses[head] += loss.item() * share
    return losses


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
