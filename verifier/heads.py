"""Heads that draft beside a verifier's model: Medusa's, and EAGLE's, which reads its states."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.compiled import NativeEagle
from common.model.eagle.head import EagleHead
from common.model.eagle.through_torch import TorchHead
from common.model.eagle.weights import EagleWeights
from common.model.loader import LoadedModel
from common.model.medusa.heads import MedusaHeads, head_dtype
from common.model.room import OTHER_WEIGHTS, SMALLER_CACHE, room_for
from common.model.runner import Runner

_log = logging.getLogger(__name__)


def load_heads(path: str, runner: Runner) -> MedusaHeads:
    """Loads Medusa heads to guess for a model."""
    weight = runner.loaded.output_weight
    assert weight is not None
    return MedusaHeads.load(
        Path(path),
        lm_head=weight,
        dtype=head_dtype(runner.loaded.dtype, runner.loaded.device),
        device=runner.loaded.device,
        threads=runner.threads,
    )


def load_eagle(path: str, loaded: LoadedModel) -> EagleWeights:
    """Reads an EAGLE-3 head made for a model, to where that is.

    Embeddings that are the model's own are left to it, as published heads often have them.
    """
    assert loaded.output_weight is not None
    with room_for(f"the head of {path}", OTHER_WEIGHTS):
        weights = eagle_checkpoint.load(
            Path(path),
            hidden_size=loaded.embeddings.shape[1],
            vocab_size=loaded.vocab_size,
            layers=loaded.layers,
            lm_head=loaded.output_weight,
        ).to(loaded.device, loaded.dtype)
        own = weights.embeddings
        if own is not None and torch.equal(own, loaded.embeddings):
            weights = replace(weights, embeddings=None)
    return weights


def eagle_head(weights: EagleWeights, runner: Runner) -> EagleHead:
    """Has a head draft from what its runner taps."""
    (cache,) = runner.head_caches
    loaded = runner.loaded
    make: Callable[..., EagleHead] = partial(TorchHead, dtype=loaded.dtype)
    if cache.device.type == "cpu" and NativeEagle.can_run(weights, cache.dtype):
        make = partial(NativeEagle, threads=runner.threads, most_threads=runner.most_threads)
    with room_for("an EAGLE head", SMALLER_CACHE):
        head = make(weights, embeddings=loaded.embeddings, cache=cache, positions=runner.max_len)
    _log.info("head made", extra={"kind": type(head).__name__, "taps": list(weights.taps)})
    return head
