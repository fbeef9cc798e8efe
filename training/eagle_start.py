"""What an EAGLE-3 head starts from: its shape, the layers it reads and the tokens it can guess."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import InvalidArgument, ModelError
from common.model.eagle.weights import EagleWeights
from common.model.hf.shape import body_of
from common.model.rotary import Rotary
from training.output import OutputLayer

_SPREAD = 0.02
"""Standard deviation of matrices before training."""

_NEEDED = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "rms_norm_eps",
    "max_position_embeddings",
)
"""Settings of a target that its head has, too."""


@dataclass(frozen=True, kw_only=True)
class EagleShape:
    """Shape of a head; heads of attention are the target's."""

    vocab: int = 1536
    """Tokens it can guess, those most frequent; all of them where 0."""

    inner: int = 0
    """Inner size of the feed-forward part; the target's where 0."""

    taps: tuple[int, ...] = ()
    """Layers whose inputs it reads, rising; `default_taps` where none."""


def check(target: Any, directory: Path, shape: EagleShape) -> None:
    """Refuses a target that no such head can be made for.

    Args:
        target: A `transformers` causal language model.
        directory: Where it came from, for messages.
        shape: Of the head.

    Raises:
        ModelError: The target is not of Llama's kind, of which a head is one layer.
        InvalidArgument: Taps that it has not.
    """
    config, file = target.config.get_text_config(), directory / "config.json"
    for name in _NEEDED:
        if getattr(config, name, None) is None:
            problem = f"{name}: missing, and an EAGLE head has its target's"
            raise ModelError(f"{file}: {problem}: none can be made for {config.model_type}")
    if not hasattr(body_of(target), "norm"):
        problem = "an EAGLE head begins with the norm of its target's output, and finds none"
        raise ModelError(f"{directory}: {problem}: none can be made for {config.model_type}")
    try:
        _rotary(config)
    except (ValueError, KeyError) as error:
        said = "no one base" if isinstance(error, KeyError) else str(error)
        problem = f"rope_parameters: {said}: an EAGLE head turns as its target does"
        raise ModelError(f"{file}: {problem}, but not in this way") from error
    last = config.num_hidden_layers - 1
    if shape.taps and shape.taps[-1] > last:
        raise InvalidArgument(
            "--taps", f"{shape.taps[-1]}, but the target's layers are 0 to {last}"
        )


def start(target: Any, shape: EagleShape, ids: Tensor | None, *, seed: int) -> EagleWeights:
    """Weights before training, float32.

    Args:
        target: A `transformers` causal language model that has passed `check`.
        shape: Of the head.
        ids: Tokens it can guess, rising; all where None. # [W]
        seed: Decides the matrices.
    """
    config = target.config.get_text_config()
    size, heads = config.hidden_size, config.num_attention_heads
    head_size = _head_size(config)
    taps = shape.taps or default_taps(config.num_hidden_layers)
    queries, keys = heads * head_size, config.num_key_value_heads * head_size
    inner = shape.inner or config.intermediate_size
    generator = torch.Generator().manual_seed(seed)

    def drawn(out: int, into: int) -> Tensor:
        return torch.randn(out, into, generator=generator) * _SPREAD

    # Guesses begin as the target's own: its last norm, and its output matrix.
    output = OutputLayer.of(target)
    lm_head = output.weight.detach().cpu().float() * output.factor
    return EagleWeights(
        taps=taps,
        fc=torch.cat([torch.eye(size)] * len(taps), dim=1) / len(taps),
        input_norm=torch.ones(size),
        hidden_norm=torch.ones(size),
        q=drawn(queries, 2 * size),
        k=drawn(keys, 2 * size),
        v=drawn(keys, 2 * size),
        o=drawn(size, queries),
        mlp_norm=torch.ones(size),
        gate=drawn(inner, size),
        up=drawn(inner, size),
        down=drawn(size, inner),
        norm=_gain(target, size),
        lm_head=lm_head if ids is None else lm_head[ids],
        ids=ids,
        embeddings=None,
        head_size=head_size,
        rotary=_rotary(config),
        epsilon=config.rms_norm_eps,
    )


def default_taps(layers: int) -> tuple[int, ...]:
    """Layers whose inputs a head reads where nothing else is said: near the start, the middle and
    the end."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)}))


def parsed_taps(listed: str) -> tuple[int, ...]:
    """Reads "2,6,9"; nothing of an empty text.

    Raises:
        InvalidArgument: Of another form, or they do not rise.
    """
    try:
        taps = tuple(int(layer) for layer in listed.split(",") if listed)
    except ValueError as error:
        raise InvalidArgument("--taps", 'must be like "2,6,9"') from error
    if any(tap < 0 for tap in taps) or sorted(set(taps)) != list(taps):
        raise InvalidArgument("--taps", "must be layers from 0 that rise")
    return taps


def frequent(texts: Iterable[Tensor], count: int, vocab_size: int) -> tuple[Tensor | None, float]:
    """The tokens that texts have most of, rising; lower ids first of equally many.

    Args:
        texts: Ids of any shape.
        count: How many; all where 0.
        vocab_size: Of the target.

    Returns:
        Int64 `[count]`, None where they are all; and their share of the texts.
    """
    if not 0 < count < vocab_size:
        return None, 1.0
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in texts:
        counts += torch.bincount(ids.flatten(), minlength=vocab_size)
    found = counts.argsort(descending=True, stable=True)[:count].sort().values
    return found, int(counts[found].sum()) / max(1, int(counts.sum()))


def _head_size(config: Any) -> int:
    size: int = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    return size


def _rotary(config: Any) -> Rotary:
    return Rotary.configured(config.to_dict(), _head_size(config))


@torch.no_grad()
def _gain(target: Any, size: int) -> Tensor:
    """What the last norm multiplies by, of any kind: its weight, and 1 more in Gemma's. # [size]"""
    signs = torch.ones(size, dtype=target.dtype, device=target.device)
    signs[1::2] = -1
    norm = body_of(target).norm
    gain: Tensor = (norm(signs) - norm(-signs)) / 2 * signs  # without a bias
    return gain.cpu().float()
