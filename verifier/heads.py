"""Heads that draft beside a verifier's model: Medusa's, and those that go on from its states by
themselves: EAGLE's, Gemma 4's assistants, and layers that the model brings along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch

from common.errors import ModelError
from common.model.assistant import checkpoint as assistant_checkpoint
from common.model.assistant.head import AssistantHead
from common.model.assistant.weights import AssistantWeights
from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.compiled import NativeEagle
from common.model.eagle.through_torch import TorchHead
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import KeyedHead
from common.model.kv_cache import LayerShape
from common.model.loader import LoadedModel
from common.model.medusa.heads import MedusaHeads, head_dtype
from common.model.mtp import checkpoint as mtp_checkpoint
from common.model.mtp.head import MtpHead
from common.model.mtp.layer import MtpLayer
from common.model.room import OTHER_WEIGHTS, SMALLER_CACHE, room_for
from common.model.runner import Runner
from verifier.methods import Head

Weights = EagleWeights | AssistantWeights | MtpLayer
"""Of a head that goes on from its model's states."""

_log = logging.getLogger(__name__)


class RunnerOptions(TypedDict, total=False):
    """What a runner is made with for a head; see `Runner`."""

    taps: Sequence[int]
    head_layers: Sequence[LayerShape]


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


def load_head(path: str, loaded: LoadedModel) -> Weights:
    """Reads a head made for a model that goes on from its states, to where that is: EAGLE-3's, an
    assistant, or one that the model brings along.

    Embeddings that are the model's own are left to it, as published heads often have them.

    Raises:
        ModelError: Missing, corrupt, unsupported or made for another model; says which file or
            what.
    """
    directory = Path(path)
    eagle_checkpoint.check_there(directory)
    if assistant_checkpoint.is_one(directory):
        with room_for(f"the assistant of {path}", OTHER_WEIGHTS):
            return assistant_checkpoint.load(directory, loaded)
    if mtp_checkpoint.is_one(directory):
        with room_for(f"the multi-token prediction layer of {path}", OTHER_WEIGHTS):
            return mtp_checkpoint.load(directory, loaded)
    if directory.samefile(loaded.path):
        raise ModelError(
            f"{path}: this model brings no drafting head along: its config.json counts none "
            f"({mtp_checkpoint.SETTING}), or its files have no such layers"
        )
    assert loaded.output_weight is not None
    with room_for(f"the head of {path}", OTHER_WEIGHTS):
        weights = eagle_checkpoint.load(
            directory,
            hidden_size=loaded.embeddings.shape[1],
            vocab_size=loaded.vocab_size,
            layers=loaded.layers,
            lm_head=loaded.output_weight,
        ).to(loaded.device, loaded.dtype)
        own = weights.embeddings
        if own is not None and torch.equal(own, loaded.embeddings):
            weights = replace(weights, embeddings=None)
    return weights


def runner_options(weights: Weights | None) -> RunnerOptions:
    """What a runner has for a head."""
    if weights is None or isinstance(weights, AssistantWeights):
        return {}
    return {"taps": weights.taps, "head_layers": [weights.shape]}


def head_for(weights: Weights, runner: Runner) -> Head:
    """Has a head draft from what its runner was made with for it.

    Raises:
        ModelError: It sees keys of other sizes than those of the runner's model.
    """
    with room_for("a head", SMALLER_CACHE):
        if isinstance(weights, AssistantWeights):
            head: Head = _assistant(weights, runner)
        elif isinstance(weights, MtpLayer):
            head = _mtp(weights, runner)
        else:
            head = _eagle(weights, runner)
    _log.info(
        "head made", extra={"kind": type(head).__name__, "taps": list(runner.loaded.context.taps)}
    )
    return head


def _eagle(weights: EagleWeights, runner: Runner) -> KeyedHead:
    (cache,) = runner.head_caches
    loaded = runner.loaded
    make: Callable[..., KeyedHead] = partial(TorchHead, dtype=loaded.dtype)
    if cache.device.type == "cpu" and NativeEagle.can_run(weights, cache.dtype):
        make = partial(NativeEagle, threads=runner.threads, most_threads=runner.most_threads)
    return make(weights, embeddings=loaded.embeddings, cache=cache, positions=runner.max_len)


def _mtp(layer: MtpLayer, runner: Runner) -> MtpHead:
    (cache,) = runner.head_caches
    return MtpHead(layer, cache=cache, vocab_size=runner.loaded.vocab_size)


def _assistant(weights: AssistantWeights, runner: Runner) -> AssistantHead:
    loaded = runner.loaded
    return AssistantHead(
        weights, embeddings=loaded.embeddings, caches=runner.model_caches, dtype=loaded.dtype
    )
