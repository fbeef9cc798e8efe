"""Whether a drafter drafts with rounded weights: where that is faster and it hardly tells.

No draft changes the text, so that here, unlike for a target, it is a question of speed alone.
"""

from __future__ import annotations

import logging
import statistics
import time
from typing import Any, Literal

import torch
from torch import Tensor

from common.errors import ModelError
from common.model.batch import Segment
from common.model.kernels import Quantize
from common.model.kv_cache import KvLease
from common.model.loader import LoadedModel, load
from common.model.runner import Runner

DraftQuantize = Literal["auto", Quantize]
"""What a drafter's weights are rounded to; auto finds out whether int8 pays."""

_TOKENS = 96
"""Of the text on which both are compared."""
_ROWS = (1, 6)
"""Of the passes that are timed: a branch, and several ahead."""
_ROUNDS = 15
_LEAST_AGREEMENT = 0.95
_MOST_TIME = 0.85
_KV_BYTES = 64 << 20

_log = logging.getLogger(__name__)


def load_drafter(path: str, *, quantize: DraftQuantize, **options: Any) -> LoadedModel:
    """Loads a drafter, rounded or not.

    Args:
        path: See `load`.
        quantize: What its weights are rounded to; auto loads both on a CPU, and keeps one.
        options: See `load`.

    Raises:
        ModelError: As `load` does.
    """
    if quantize != "auto":
        return load(path, quantize=quantize, **options)
    exact = load(path, quantize="none", **options)
    if exact.device.type != "cpu":
        return exact
    try:
        rounded = load(path, quantize="int8", **options)
    except ModelError as error:
        _log.info("this drafter is not rounded", extra={"reason": str(error)})
        return exact
    agreement, share = compare(exact, rounded)
    pays = agreement >= _LEAST_AGREEMENT and share <= _MOST_TIME
    facts = {"int8": pays, "agreement": round(agreement, 3), "time": round(share, 2)}
    _log.info("rounding measured", extra=facts)
    return rounded if pays else exact


def compare(exact: LoadedModel, rounded: LoadedModel) -> tuple[float, float]:
    """Compares a model with itself rounded, on a text that it draws from itself.

    Args:
        exact: As it is stored.
        rounded: The same with rounded weights.

    Returns:
        The share of tokens after which both choose the same next one, and what a pass of the
        rounded one takes of the other's time.
    """
    text = _drawn(exact)
    found = [_logits(model, text).argmax(-1) for model in (exact, rounded)]
    agreement = (found[0] == found[1]).float().mean().item()
    return agreement, _time(rounded, exact)


def _drawn(model: LoadedModel) -> list[int]:
    """A text at temperature 1."""
    runner, generator = Runner(model, kv_bytes=_KV_BYTES), torch.Generator().manual_seed(0)
    lease = _lease(runner)
    ids = [next(iter(model.eos_token_ids), 0)]
    for at in range(min(_TOKENS, runner.max_len) - 1):
        output = runner.forward([Segment(ids[-1:], at, lease.slots, wanted=[0])])
        chances = output.logits[0].float().softmax(-1)
        ids.append(int(torch.multinomial(chances, 1, generator=generator)))
    return ids


def _logits(model: LoadedModel, ids: list[int]) -> Tensor:
    """After each token. # [N, V]"""
    runner = Runner(model, kv_bytes=_KV_BYTES)
    segment = Segment(ids, 0, _lease(runner).slots, wanted=range(len(ids)))
    return runner.forward([segment]).logits


def _time(one: LoadedModel, other: LoadedModel) -> float:
    """Time of a model's passes over that of another's, taken in turns."""
    runners = [Runner(model, kv_bytes=_KV_BYTES) for model in (one, other)]
    leases = [_lease(runner) for runner in runners]
    took: dict[tuple[int, int], list[float]] = {}
    for _ in range(_ROUNDS):
        for which, (runner, lease) in enumerate(zip(runners, leases, strict=True)):
            for rows in _ROWS:
                began = time.perf_counter()
                runner.forward([Segment([0] * rows, 0, lease.slots, wanted=range(rows))])
                took.setdefault((which, rows), []).append(time.perf_counter() - began)
    sums = [sum(statistics.median(took[which, rows]) for rows in _ROWS) for which in range(2)]
    return sums[0] / sums[1]


def _lease(runner: Runner) -> KvLease:
    lease = KvLease(runner.pool.blocks)
    lease.reserve(min(_TOKENS, runner.max_len))
    return lease
