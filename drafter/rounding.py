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
from common.model.loader import LoadedModel, device_name, load
from common.model.quantized import Quantize
from common.model.room import give_back
from common.model.runner import Runner
from common.model.segment import Segment

DraftQuantize = Literal["auto", Quantize]
"""What a drafter's weights are rounded to; auto finds out whether int8 pays."""

_TOKENS = 96
"""Of the text on which both are compared."""
_ROWS = (1, 6)
"""Of the passes that are timed: a branch, and several ahead."""
_ROUNDS = 15
_LEAST_AGREEMENT = 0.95
"""A draft token that is lost costs more than one token's pass: what follows it is lost, too."""
_MOST_TIME = 0.85
"""Less would not make up for that, or be noise."""
_KV_BYTES = 64 << 20
_CACHES_BYTES = 32 << 20
"""What goes through the processor's caches before each, as the weights of a target beside it do:
fewer bytes to bring back are much of what rounding is good for."""

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
    if quantize == "int8":
        return _in_int8(path, options)
    if quantize != "auto":
        return load(path, quantize=quantize, **options)
    exact = load(path, quantize="none", **options)
    if exact.device.type != "cpu":
        return exact
    rounded = _rounded(path, exact, options)
    if rounded is None:
        return exact
    agreement, share = compare(exact, rounded)
    pays = agreement >= _LEAST_AGREEMENT and share <= _MOST_TIME
    facts = {"int8": pays, "agreement": round(agreement, 3), "time": round(share, 2)}
    _log.info("rounding measured", extra=facts)
    return rounded if pays else exact


def _rounded(path: str, exact: LoadedModel, options: dict[str, Any]) -> LoadedModel | None:
    """A drafter with rounded weights; None where it is refused, which may be known before."""
    reason = exact.unroundable
    if not reason:
        try:
            return _in_int8(path, options, exact)
        except ModelError as error:
            reason = str(error)
        give_back()  # what the attempt left
    _log.info("this drafter is not rounded", extra={"reason": reason})
    return None


def _in_int8(path: str, options: dict[str, Any], exact: LoadedModel | None = None) -> LoadedModel:
    """A drafter with weights of int8.

    The compiled decoder has such products beside bfloat16 alone. That is the type of what it runs
    then, whichever was asked for: through torch int8 gains nothing beside the decoder in float32.

    Args:
        path: See `load`.
        options: See `load`.
        exact: The same model as it is stored, where that is known.
    """
    on_cpu = device_name(options.get("device", "auto")) == "cpu"
    if on_cpu and (exact is None or exact.compiled):
        loaded = load(path, quantize="int8", **options | {"dtype": "bfloat16"})
        if loaded.compiled or options.get("dtype") == "bfloat16":
            return loaded
        del loaded  # there need not be room for both
    return load(path, quantize="int8", **options)


def compare(exact: LoadedModel, rounded: LoadedModel) -> tuple[float, float]:
    """Compares a model with itself rounded, on a text that it draws from itself.

    Args:
        exact: As it is stored.
        rounded: The same with rounded weights.

    Returns:
        The share of tokens after which both choose the same next one, and what a pass of the
        rounded one takes of the other's time, where neither's weights are in the caches.
    """
    probes = [_Probe(model) for model in (exact, rounded)]
    text = probes[0].drawn()
    chosen, other = (probe.choices(text) for probe in probes)
    took: list[list[float]] = [[], []]
    others = torch.ones(_CACHES_BYTES // torch.float32.itemsize)
    for _ in range(_ROUNDS):
        for times, probe in zip(took, probes, strict=True):
            times.append(0.0)
            for rows in _ROWS:
                others.sum()
                times[-1] += probe.seconds(rows)
    of_exact, of_rounded = map(statistics.median, took)
    return (chosen == other).float().mean().item(), of_rounded / of_exact


class _Probe:
    """A model with room for one text."""

    def __init__(self, model: LoadedModel) -> None:
        self._runner = Runner(model, kv_bytes=_KV_BYTES)
        self._tokens = min(_TOKENS, self._runner.max_len)
        self._slots = self._runner.pool.lease(self._tokens).slots

    def drawn(self) -> list[int]:
        """A text at temperature 1."""
        generator = torch.Generator().manual_seed(0)
        ids = [next(iter(self._runner.loaded.eos_token_ids), 0)]
        while len(ids) < self._tokens:
            segment = Segment(ids[-1:], len(ids) - 1, self._slots, wanted=[0])
            chances = self._runner.forward([segment]).logits[0].float().softmax(-1)
            ids.append(int(torch.multinomial(chances, 1, generator=generator)))
        return ids

    def choices(self, ids: list[int]) -> Tensor:
        """The likeliest token after each. # [N]"""
        segment = Segment(ids, 0, self._slots, wanted=range(len(ids)))
        return self._runner.forward([segment]).logits.argmax(-1)

    def seconds(self, rows: int) -> float:
        """Of one pass."""
        segment = Segment([0] * rows, 0, self._slots, wanted=range(rows))
        began = time.perf_counter()
        self._runner.forward([segment])
        return time.perf_counter() - began
