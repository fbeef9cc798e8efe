"""Training of Medusa heads (Cai et al., 2024) by self-distillation.

The labels are the target's own distributions, on corpora and on text that it wrote. Medusa-1
trains heads over a frozen target. Medusa-2 goes on with the whole model: the target, as it was,
keeps the copy that is trained from drifting.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from training import acceptance, heads
from training.heads import Heads
from training.held_out import Domain
from training.loop import decayed
from training.loss import distil_backward
from training.output import OutputLayer
from training.tree import PathWorth, of_size

HEAD_DECAY = 0.8
"""Head i weighs this to the power of i."""

JOINT_SHARE = 0.2
"""All heads' weight beside the base model's loss in joint training."""

JOINT_HEAD_RATE = 4.0
"""Learning rate of the heads relative to the base model's in joint training."""

SCORE_NODES = 16
"""Nodes of the tree whose tokens per pass choose the checkpoint."""


class FrozenBase:
    """Medusa-1: the heads alone.

    Args:
        target: A `transformers` causal language model; not changed.
        module: The heads.
        domains: What the checkpoint is chosen by.
        accelerator: Where to compute.
    """

    def __init__(
        self, target: Any, module: Heads, domains: Sequence[Domain], accelerator: Accelerator
    ) -> None:
        self.module: nn.Module = module.to(accelerator.device)
        self._heads = module
        self._target = target.to(accelerator.device).eval().requires_grad_(False)
        self._output = OutputLayer.of(target)
        self._domains, self._accelerator = domains, accelerator

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """See `Task`."""
        return decayed(self.module, learning_rate)

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """See `Task`."""
        with torch.no_grad():
            hidden = self._target.base_model(input_ids=batch).last_hidden_state
        scales = [HEAD_DECAY**head for head in range(len(self._heads))]
        single = heads.backward(
            self._heads,
            batch,
            hidden,
            self._output.weight,
            hidden,
            self._output,
            scales,
            self._accelerator,
        )
        return _named(single, scales)

    def evaluate(self) -> dict[str, float]:
        """See `Task`."""
        with self._accelerator.autocast():
            return evaluate(self._target, self._heads, self._domains)


class JointModel(nn.Module):
    """A base model and its heads as one module.

    Args:
        base: A `transformers` causal language model.
        module: The heads.
    """

    def __init__(self, base: nn.Module, module: Heads) -> None:
        super().__init__()
        self.base, self.heads = base, module


class Joint:
    """Medusa-2: heads and base model together.

    Args:
        target: A `transformers` causal language model, kept as the teacher.
        module: The heads, trained over the frozen target first.
        domains: Makes the held-out texts of a model: the base model changes, and so does what
            it writes. A model that drifts into repeating itself would score well too, so watch
            "loss_base", which is lowest where it still writes as the target does.
        accelerator: Where to compute.
    """

    def __init__(
        self,
        target: Any,
        module: Heads,
        domains: Callable[[Any], Sequence[Domain]],
        accelerator: Accelerator,
    ) -> None:
        self._teacher = target.to(accelerator.device).eval().requires_grad_(False)
        self.base: Any = copy.deepcopy(target).float().requires_grad_(True)
        self._heads = module
        self.module: nn.Module = JointModel(self.base, module).to(accelerator.device)
        self._domains, self._accelerator = domains, accelerator

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """See `Task`."""
        return [
            *decayed(self.base, learning_rate),
            *decayed(self._heads, learning_rate * JOINT_HEAD_RATE),
        ]

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """See `Task`."""
        with torch.no_grad():
            taught = self._teacher.base_model(input_ids=batch).last_hidden_state
        teacher_output = OutputLayer.of(self._teacher)
        with self._accelerator.autocast():
            hidden = self.base.base_model(input_ids=batch).last_hidden_state
        # The heads' gradients add up here; the trunk runs backward once.
        leaf = hidden.detach().float().requires_grad_(True)
        output = OutputLayer.of(self.base)
        base_loss = distil_backward(leaf, output, taught, teacher_output, self._accelerator)
        strength = JOINT_SHARE * math.sin(math.pi / 2 * progress)
        scales = [strength * HEAD_DECAY**head for head in range(len(self._heads))]
        single = heads.backward(
            self._heads,
            batch,
            leaf,
            output.weight,
            taught,
            teacher_output,
            scales,
            self._accelerator,
        )
        hidden.backward(leaf.grad.to(hidden.dtype))
        return {**_named(single, scales, base_loss), "loss_base": base_loss}

    def evaluate(self) -> dict[str, float]:
        """See `Task`."""
        with self._accelerator.autocast():
            return evaluate(self.base, self._heads, self._domains(self.base))


def evaluate(target: Any, module: Heads, domains: Sequence[Domain]) -> dict[str, float]:
    """See `acceptance.figures`: with one tree of `SCORE_NODES` nodes, the best of them all."""
    lm_head = target.get_output_embeddings().weight
    found = {d.name: acceptance.ranks(target, module, d.choosing, lm_head) for d in domains}
    best = of_size(PathWorth([*found.values()]), SCORE_NODES)
    return acceptance.figures(found, best, "head")


def _named(single: Sequence[float], scales: Sequence[float], base: float = 0.0) -> dict[str, float]:
    total = base + sum(s * loss for s, loss in zip(scales, single, strict=True))
    return {"loss": total, **{f"loss head {i}": loss for i, loss in enumerate(single)}}
