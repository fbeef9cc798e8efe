"""Logit bias, then repetition penalty: what comes before temperature."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from common.model.row import Row, biases_of
from common.model.transfer import on_device

_AT_ONCE = 64
"""Rows: of each some lines as long as the vocabulary are made on the way."""


def adjust(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits after bias and penalty.

    Args:
        logits: Any floating-point type. # [N, V]
        rows: What each row's choice depends on, one a row.

    Returns:
        float32; the same tensor where nothing changes. # [N, V]
    """
    if not any(row.params.adjusts for row in rows):
        return logits.float()
    adjusted = logits.to(torch.float32, copy=True)
    assert len(adjusted) == len(rows)
    if adjusted.is_cpu:
        adjust_each(adjusted, rows)
    else:
        adjust_at_once(adjusted, rows)
    return adjusted


def adjust_each(logits: Tensor, rows: Sequence[Row]) -> None:
    """Adjusts logits in place, row by row: those alone that change, for a CPU.

    Args:
        logits: float32. # [N, V]
        rows: One a row.
    """
    for line, row in zip(logits, rows, strict=True):
        if row.params.logit_bias:
            ids, biases = biases_of(row.params, line.device)
            line[ids] += biases
        if row.params.penalises:
            _penalise(line.numpy(), row)


def _penalise(line: np.ndarray, row: Row) -> None:
    """Repetition penalty of a row's logits; numpy's calls take less than torch's."""
    seen = np.flatnonzero(_seen(row).numpy())
    at = np.concatenate((seen, np.array(row.path, dtype=np.int64)))
    few = line[at]
    with np.errstate(all="ignore"):
        penalty = np.float32(row.params.repetition_penalty)
        line[at] = np.where(few < 0, few * penalty, few / penalty)


def adjust_at_once(logits: Tensor, rows: Sequence[Row]) -> None:
    """Adjusts logits in place, for a device: in few calls, which do not wait for what it computes.

    Args:
        logits: float32. # [N, V]
        rows: One a row, those of a text side by side.
    """
    start = 0
    for params, text in groupby(rows, attrgetter("params")):
        end = start + len([*text])
        if params.logit_bias:
            ids, biases = biases_of(params, logits.device)
            logits[start:end, ids] += biases
        start = end
    penalised = [i for i, row in enumerate(rows) if row.params.penalises]
    for first in range(0, len(penalised), _AT_ONCE):
        at = penalised[first : first + _AT_ONCE]
        _penalise_at_once(logits, [rows[i] for i in at], at)


def _penalise_at_once(logits: Tensor, rows: Sequence[Row], at: Sequence[int]) -> None:
    """Repetition penalties of some rows' logits."""
    seen = torch.stack([_seen(row) for row in rows])
    if path := [(i, token) for i, row in enumerate(rows) for token in row.path]:
        seen[on_device(path, logits.device).unbind(1)] = True
    factors = [(row.params.repetition_penalty,) for row in rows]
    factor = on_device(factors, logits.device, torch.float32)
    places = on_device(at, logits.device)
    lines = logits[places]
    changed = torch.where(lines < 0, lines * factor, lines / factor)
    logits[places] = torch.where(seen, changed, lines)


def _seen(row: Row) -> Tensor:
    assert row.seen is not None, "a repetition penalty needs the tokens seen"
    return row.seen
