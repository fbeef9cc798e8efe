"""Distillation of a drafter: a small model learns the target's distributions.

On corpora and on text that the target wrote. What counts is how often the drafter's likeliest
token is the target's, so that chooses the checkpoint; the loss may go on falling after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from training import acceptance
from training.held_out import Domain
from training.loop import decayed
from training.loss import distil_backward
from training.output import OutputLayer

SCORE_LENGTHS = (3, 5)
"""Draft lengths whose tokens per target pass choose the checkpoint."""


Labels = Literal["target", "text"]
"""What the drafter learns from: the target's distributions, or, for comparison, the text alone, as
a model trained without a target."""


class Distillation:
    """A drafter in training.

    Args:
        draft: A `transformers` causal language model in float32.
        target: One with the same vocabulary; not changed.
        domains: The target's greedy texts that choose the checkpoint.
        accelerator: Where to compute.
        labels: What the drafter learns from.
    """

    def __init__(
        self,
        draft: Any,
        target: Any,
        domains: Sequence[Domain],
        accelerator: Accelerator,
        labels: Labels = "target",
    ) -> None:
        self._draft: Any = draft.to(accelerator.device)
        self.module: nn.Module = self._draft
        self._target = target.to(accelerator.device).eval().requires_grad_(False)
        self._domains, self._accelerator, self._labels = domains, accelerator, labels

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """See `Task`."""
        return decayed(self.module, learning_rate)

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """See `Task`."""
        if self._labels == "text":
            with self._accelerator.autocast():
                loss = self._draft(input_ids=batch, labels=batch).loss
            self._accelerator.backward(loss)
            return {"loss": loss.item()}
        with torch.no_grad():
            taught = self._target.base_model(input_ids=batch).last_hidden_state
        with self._accelerator.autocast():
            hidden = self._draft.base_model(input_ids=batch).last_hidden_state
        leaf = hidden.detach().requires_grad_(True)
        loss = distil_backward(
            leaf,
            OutputLayer.of(self._draft),
            taught,
            OutputLayer.of(self._target),
            self._accelerator,
        )
        hidden.backward(leaf.grad)
        return {"loss": loss}

    def evaluate(self) -> dict[str, float]:
        """See `Task`."""
        with self._accelerator.autocast():
            found = {
                domain.name: acceptance.chain(self._draft, domain.choosing, SCORE_LENGTHS)
                for domain in self._domains
            }
        tokens = [chain.tokens[k] for chain in found.values() for k in SCORE_LENGTHS]
        return {
            "score": sum(tokens) / len(tokens),
            **{f"agreement {name}": chain.agreement for name, chain in found.items()},
        }
