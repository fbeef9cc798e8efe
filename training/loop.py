"""The loop that every kind of training here runs in.

A plain loop over accelerate (device, mixed precision, clipping) and the optimisers of torch rather
than `transformers.Trainer`: heads take their backward passes one after another, checkpoints are
chosen by measured acceptance, and a run that goes on must repeat its losses to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import get_cosine_schedule_with_warmup

from training.folder import RunFolder

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps wanted and a line about the last figures."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Settings common to every kind of training."""

    steps: int
    """Optimiser steps."""

    batch: int = 8
    """Blocks of a step."""

    learning_rate: float = 1e-3
    """Highest one; it rises linearly, then falls along a cosine to zero."""

    warmup_share: float = 0.05
    """Part of the steps in which the learning rate rises."""

    weight_decay: float = 0.1
    """AdamW's, on matrices."""

    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""

    log_every: int = 10
    """Steps between points of the curves."""

    evaluate_every: int = 200
    """Steps between evaluations, each followed by a checkpoint."""


class Batches(Protocol):
    """What is trained on."""

    def batch(self, step: int, size: int) -> Tensor:
        """The blocks of a step, a function of its number. # [size, T]"""


class Task(Protocol):
    """What is trained, and how well it does."""

    module: nn.Module
    """The weights that change and are saved."""

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Parameter groups, each with its highest learning rate."""

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """One forward and backward pass.

        Args:
            batch: Ids on the accelerator's device, int64. # [B, T]
            progress: Part of the run that is done, 0 to 1.

        Returns:
            Losses by name, "loss" among them; gradients are left on the parameters.
        """

    def evaluate(self) -> dict[str, float]:
        """Figures by name, among them "score": higher is better."""


def make_accelerator(device: str, *, half: bool) -> Accelerator:
    """Settles where and in which precision to compute.

    Args:
        device: "cpu" or "cuda".
        half: Whether products run in bfloat16.
    """
    return Accelerator(
        cpu=device == "cpu",
        mixed_precision="bf16" if half else "no",
    )


def train(
    task: Task,
    batches: Batches,
    folder: RunFolder,
    accelerator: Accelerator,
    config: LoopConfig,
    progress: Progress = lambda done, total, line: None,
) -> None:
    """Trains, from the folder's checkpoint on if there is one, and leaves the best weights.

    Modules stay in evaluation mode: dropout would draw numbers that a run which goes on cannot
    draw again.

    Args:
        task: What.
        batches: On what.
        folder: Where checkpoints and curves go.
        accelerator: Where and in which precision to compute.
        config: How.
        progress: Told of every step.
    """
    optimizer = torch.optim.AdamW(
        task.groups(config.learning_rate),
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )
    schedule = get_cosine_schedule_with_warmup(
        optimizer, round(config.steps * config.warmup_share), config.steps
    )
    task.module.eval()
    folder.resume(task.module, optimizer, schedule)
    state, line = folder.state, ""
    with _deterministic():
        if state.step == 0:  # what training starts from may be the best there will be
            _evaluate(task, folder)
        while state.step < config.steps:
            batch = batches.batch(state.step, config.batch).to(accelerator.device, torch.int64)
            losses = task.losses(batch, state.step / config.steps)
            accelerator.clip_grad_norm_(task.module.parameters(), config.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            state.step += 1
            if state.step % config.log_every == 0:
                folder.record({"step": state.step, **losses})
            if state.step % config.evaluate_every == 0 or state.step == config.steps:
                line = _figures(_evaluate(task, folder))
                folder.save(task.module, optimizer, schedule)
            progress(state.step, config.steps, f"loss {losses['loss']:.3f} {line}")
    folder.load_best(task.module)


def _evaluate(task: Task, folder: RunFolder) -> dict[str, float]:
    found = task.evaluate()
    folder.record({"step": folder.state.step, **found})
    folder.score(task.module, found)
    return found


def decayed(module: nn.Module, learning_rate: float) -> list[dict[str, Any]]:
    """Parameter groups of a module: vectors (norms, biases) are not decayed."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices = {"params": [p for p in trained if p.ndim > 1], "lr": learning_rate}
    vectors = {"params": [p for p in trained if p.ndim <= 1], "lr": learning_rate}
    return [group for group in (matrices, {**vectors, "weight_decay": 0.0}) if group["params"]]


def _figures(found: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in found.items())


@contextmanager
def _deterministic() -> Iterator[None]:
    """Kernels that give the same bits in every run, where there are such."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
