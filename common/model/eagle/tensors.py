"""Tensors of EAGLE-3 heads by key: checked as they come from a file, and as they are written.

Every head has

    fc.weight, norm.weight, lm_head.weight
    midlayer.hidden_norm.weight, midlayer.input_layernorm.weight
    midlayer.self_attn.{q,k,v,o}_proj.weight
    midlayer.post_attention_layernorm.weight
    midlayer.mlp.{gate,up,down}_proj.weight

and may have

    fc.bias
    embed_tokens.weight   where they are not there, the target's serve
    d2t  [W]              what is added to a head's id to make the target's, in any order; where
                          it is not there, the head has them all
    t2d  [V]              whether the head has an id of the target's; says nothing more

`speculators` calls the layer `layers.0`, and may keep tensors of the target. No other key may be
there, and every shape must fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from common.errors import ModelError
from common.model.eagle.config import EagleConfig
from common.model.eagle.weights import EagleWeights
from common.model.tensors_by_key import check

_LAYER = {
    "input_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_OURS, _SPECULATORS = "midlayer.", "layers.0."
_EMBEDDINGS, _BIAS, _FC = "embed_tokens.weight", "fc.bias", "fc.weight"
_OF_THE_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")


def weights_of(
    file: Path, held: Mapping[str, Tensor], config: EagleConfig, target: int, vocab: int
) -> EagleWeights:
    """The weights that a file's tensors are.

    Args:
        file: Where they came from, for the message.
        held: By key.
        config: Of the head.
        target: Hidden size of the target.
        vocab: Its vocabulary.

    Raises:
        ModelError: They are of another kind of head, or not of these sizes; names the key.
    """
    tensors = {key: value for key, value in held.items() if key not in _OF_THE_TARGET}
    layer = _OURS if any(key.startswith(_OURS) for key in tensors) else _SPECULATORS
    _check_kind(file, tensors, layer)
    ids = _ids(file, tensors.pop("d2t", None), config.guesses, vocab)
    known = tensors.pop("t2d", None)
    if known is not None and known.shape != (vocab,):
        found = tuple(known.shape)
        raise ModelError(f"{file}: t2d: shape {found}, but this model needs {(vocab,)}")
    shapes = _shapes(config, target)
    keys = _keys(layer)
    wanted = {keys[name]: shape for name, shape in shapes.items()}
    fc = tensors.get(_FC)
    if fc is not None and fc.ndim == 2 and fc.shape[1] != wanted[_FC][1]:
        there = f"reads {fc.shape[1]} numbers, but layers {list(config.taps)} of a target of hidden"
        raise ModelError(f"{file}: {_FC}: {there} size {target} have {wanted[_FC][1]}")
    if _BIAS in tensors:
        wanted[_BIAS] = (config.hidden,)
    if _EMBEDDINGS in tensors or config.hidden != target:  # else the target's serve
        wanted[_EMBEDDINGS] = (vocab, config.hidden)
    check(file, tensors, wanted)
    named = {name: tensors[keys[name]] for name in shapes}
    if ids is not None:
        ids, named["lm_head"] = _in_order(ids, named["lm_head"], vocab)
    return EagleWeights(
        taps=config.taps,
        fc_bias=tensors.get(_BIAS),
        ids=ids,
        embeddings=tensors.get(_EMBEDDINGS),
        head_size=config.head_size,
        rotary=config.rotary(),
        epsilon=config.epsilon,
        norm_before_residual=config.norm_before_residual,
        **named,
    )


def tensors_of(weights: EagleWeights, vocab: int) -> dict[str, Tensor]:
    """Tensors by key as they are written: bfloat16, where they are no ids; none shares memory.

    Args:
        weights: Of a head.
        vocab: The target's vocabulary.
    """
    tensors = {key: getattr(weights, name) for name, key in _keys(_OURS).items()}
    optional = {_BIAS: weights.fc_bias, _EMBEDDINGS: weights.embeddings}
    tensors |= {key: tensor for key, tensor in optional.items() if tensor is not None}
    narrowed = {
        key: tensor.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
        for key, tensor in tensors.items()
    }
    if weights.ids is None or len(weights.ids) == vocab:
        return narrowed
    ids = weights.ids.cpu()
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    return {**narrowed, "d2t": ids - torch.arange(len(ids)), "t2d": known}


def _check_kind(file: Path, tensors: Mapping[str, Tensor], layer: str) -> None:
    """Refuses heads of several layers, and of the first two kinds, which norm neither input."""
    for key in tensors:
        if key.startswith(("layers.", "additional_layers.")) and not key.startswith(layer):
            raise ModelError(f"{file}: {key}: heads of several layers are not supported")
    if f"{layer}self_attn.q_proj.weight" in tensors and f"{layer}hidden_norm.weight" not in tensors:
        fc = tensors.get(_FC)
        if fc is not None and fc.ndim == 2 and fc.shape[1] == 2 * fc.shape[0]:
            raise ModelError(f"{file}: holds an EAGLE-1 or EAGLE-2 head; only EAGLE-3 is supported")


def _keys(layer: str) -> dict[str, str]:
    """Keys of the tensors that every head has, by their names in `EagleWeights`."""
    inner = {name: f"{layer}{key}.weight" for name, key in _LAYER.items()}
    return {"fc": _FC, **inner, "norm": "norm.weight", "lm_head": "lm_head.weight"}


def _shapes(config: EagleConfig, target: int) -> dict[str, tuple[int, ...]]:
    """Their shapes, over a target of this hidden size."""
    size, queries = config.hidden, config.heads * config.head_size
    keys = config.kv_heads * config.head_size
    return {
        "fc": (size, len(config.taps) * target),
        "q": (queries, 2 * size),
        "k": (keys, 2 * size),
        "v": (keys, 2 * size),
        "o": (size, queries),
        "gate": (config.inner, size),
        "up": (config.inner, size),
        "down": (size, config.inner),
        "lm_head": (config.guesses, size),
        **dict.fromkeys(("input_norm", "hidden_norm", "mlp_norm", "norm"), (size,)),
    }


def _ids(file: Path, offsets: Tensor | None, count: int, vocab: int) -> Tensor | None:
    """The target's ids of a head's tokens; None where the file says none: they are all."""
    if offsets is None:
        if count != vocab:
            raise ModelError(f"{file}: d2t: missing, but the head has {count} of {vocab} tokens")
        return None
    kind = offsets.dtype
    if offsets.shape != (count,) or kind.is_floating_point or kind.is_complex or kind is torch.bool:
        problem = f"{kind} of shape {tuple(offsets.shape)}, but must be {count} whole numbers"
        raise ModelError(f"{file}: d2t: {problem}")
    offsets = offsets.long()
    ids = torch.arange(count) + offsets
    within = int(offsets.max()) < vocab  # so that no sum wraps around
    if not within or int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) < count:
        raise ModelError(f"{file}: d2t: ids must differ, and be of the target's {vocab}")
    return ids


def _in_order(ids: Tensor, lm_head: Tensor, vocab: int) -> tuple[Tensor | None, Tensor]:
    """Ids as they rise, and the rows that go with them; None where they are all.

    Some trainers have the most frequent first.
    """
    rising, order = ids.sort()
    if not torch.equal(rising, ids):
        lm_head = lm_head[order]
    return None if len(ids) == vocab else rising, lm_head
