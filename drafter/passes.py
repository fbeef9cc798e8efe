"""What a batch takes: one pass of the model, or several in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from common.model.distribution import distributions
from common.model.output import rows_of
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import Ranked, rank, sample
from common.model.transfer import on_device
from drafter import rolling
from drafter.item import Item, row_of, sent

_ROLL_S = 1.5e-3
"""Longest call of several passes where a verifier waits for one of its branches: what others say
meanwhile waits for its end."""

_FEW_PASSES = 2
"""Where fewer take as long, a call has all that are wanted, and ends where others say something."""

_SMOOTHING = 0.1


class Passes:
    """Computes batches.

    Args:
        runner: The draft model.
        most: Draft tokens of a branch, at most.
        news: A descriptor that can be read from where verifiers have said something.
    """

    def __init__(self, runner: Runner, most: int, news: int) -> None:
        self._runner, self._most, self._news = runner, most, news
        self.pass_s = 0.0
        """Moving average of one pass, in seconds; 0 before the first."""

    def run(self, batch: list[Item]) -> tuple[int, int]:
        """Computes a batch, and goes on with its branches where that takes no further call.

        What goes ahead of outcomes stops where news comes, for one of them may be what it says; so
        does what takes long.

        Returns:
            Passes, and draft tokens chosen.
        """
        most, news = 0, -1
        if self._runner.rolls and self.pass_s:
            most = int(_ROLL_S / self.pass_s)
            if most < _FEW_PASSES or not any(item.mirror.due for item in batch):
                most, news = self._most, self._news
        further = rolling.levels(batch, most)
        started = time.perf_counter()
        if further:
            passes, tokens = rolling.roll(self._runner, batch, further, news)
        else:
            passes, tokens = 1, self._pass(batch)
        seconds = (time.perf_counter() - started) / passes
        self.pass_s += (seconds - self.pass_s) * (_SMOOTHING if self.pass_s else 1.0)
        return passes, tokens

    def _pass(self, batch: list[Item]) -> int:
        """One forward pass, and the choice at every node that has been computed; returns how many
        of these are draft tokens."""
        output = self._runner.forward([item.segment() for item in batch])
        ends = [(item, node) for item in batch for node in item.ends]
        if not ends:
            return 0
        rows = [row_of(item.mirror, node) for item, node in ends]
        logits = output.logits[: len(rows)]
        narrow = [item.mirror.vocab_size for item, _ in ends]
        if any(narrow):
            logits = _narrowed(logits, narrow)
        most = max(item.mirror.ranks for item, _ in ends)
        ranked = rank(logits, rows, most) if most > 1 else _chosen(logits, rows)
        for (item, node), found in zip(ends, ranked, strict=True):
            ranks = item.mirror.ranks
            node.rank(found.ids[:ranks], found.behind[:ranks] if ranks > 1 else None)
        draws = [i for i, (item, _) in enumerate(ends) if item.mirror.wants_drawn]
        if draws:
            drawn_from = distributions(rows_of(logits, draws), [rows[i] for i in draws])
            for i, distribution in zip(draws, drawn_from, strict=True):
                ends[i][1].drawn = sent(distribution)
        return sum(item.mirror.round is not None for item, _ in ends)


def _narrowed(logits: Tensor, sizes: Seq[int]) -> Tensor:
    """Logits without the ids from each row's size on; a size of 0 leaves all of them. # [N, V]"""
    ids = torch.arange(logits.shape[1], device=logits.device)
    most = on_device([size or len(ids) for size in sizes], logits.device)
    return logits.masked_fill(ids >= most[:, None], -torch.inf)


def _chosen(logits: Tensor, rows: Seq[Row]) -> list[Ranked]:
    """The choices alone, where nobody wants to know what comes next."""
    return [Ranked((token,), ()) for token in sample(logits, rows).tolist()]
