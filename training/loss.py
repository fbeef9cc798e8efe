"""Cross-entropy with a whole distribution as the label, and in little memory."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from training.output import OutputLayer

CHUNK_ROWS = 2048
"""Positions whose logits, and whose labels, are held at once."""


class _SoftCrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, so that logits are gone over once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logs = logits.log_softmax(-1, dtype=torch.float32)  # [N, V]
        losses: Tensor = -torch.einsum("nv,nv->n", logs, labels)
        gradient = logs.exp_().sub_(labels)
        ctx.save_for_backward(gradient.to(logits.dtype))
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        scaled: Tensor = gradient * (grads[0] / len(gradient))
        return scaled, None


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over rows of -sum(label * log softmax(logits)).

    Its gradient is that of the KL divergence from the labels; it exceeds it by their entropy.

    Args:
        logits: Any floating-point type. # [N, V]
        labels: Probabilities, each row summing to 1, float32. # [N, V]
    """
    loss: Tensor = _SoftCrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call]
    return loss


def distil_backward(
    hidden: Tensor,
    output: OutputLayer,
    teacher_hidden: Tensor,
    teacher_output: OutputLayer,
    accelerator: Accelerator,
) -> float:
    """Distils one model's distributions into another's, some blocks at a time.

    Args:
        hidden: The learner's states after its final norm; a leaf, which receives the gradient.
            # [B, T, d]
        output: Makes its logits of them.
        teacher_hidden: The teacher's states of the same text. # [B, T, d']
        teacher_output: Makes its logits of them.
        accelerator: Runs the passes.

    Returns:
        The mean loss.
    """
    total = 0.0
    for part, share in chunks(hidden):
        with accelerator.autocast():
            logits = output(hidden[part]).flatten(0, 1)
        labels = distributions(teacher_hidden[part], teacher_output, accelerator)
        loss = soft_cross_entropy(logits, labels.flatten(0, 1))
        accelerator.backward(loss * share)
        total += loss.item() * share
    return total


def distributions(hidden: Tensor, output: OutputLayer, accelerator: Accelerator) -> Tensor:
    """A teacher's probabilities. # [B, T, d] -> float32 [B, T, V]"""
    with torch.no_grad(), accelerator.autocast():
        return output(hidden).float().softmax(-1)


def chunks(hidden: Tensor) -> list[tuple[slice, float]]:
    """Cuts a batch of blocks so that few logits are held; each part with its share of it."""
    blocks, length, _ = hidden.shape
    size = max(1, CHUNK_ROWS // length)
    parts = [slice(first, min(first + size, blocks)) for first in range(0, blocks, size)]
    return [(part, (part.stop - part.start) / blocks) for part in parts]
