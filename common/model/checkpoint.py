"""Reads decoders of Llama's shape from their files, without `transformers`.

Importing that, and building a model to take its weights out, is most of the time that a worker
takes to start. So what is written plainly in the files is read here; a setting or a tensor that
is not known to leave the computation as it is has the model loaded by `transformers` instead
(`hf`), which says no to what it cannot use. Both ways lead to the same bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.model import weight_files
from common.model.facts import Facts, ends
from common.model.llama import Linear, Llama, LlamaLayer, Mlp
from common.model.room import ran_out
from common.model.rotary import Rotary

Config = Mapping[str, Any]
"""What `config.json` holds."""

_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_NO_MATTER = {
    "attention_dropout",
    "bos_token_id",
    "initializer_range",
    "pad_token_id",
    "pretraining_tp",
    "transformers_version",
    "use_cache",
    "_name_or_path",
}
"""Settings that change nothing in how a row is computed."""

_READ = {
    "architectures",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "vocab_size",
}
"""Settings of every kind of model that are read below."""


class _Kind(NamedTuple):
    """How a kind of model differs from the others."""

    settings: frozenset[str]
    """It has beside `_READ`."""
    qk_norm: bool = False
    """Whether queries and keys have a norm."""


_EMBEDDINGS, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_LAYERS = "model.layers"
_QK_NORMS = "self_attn.q_norm.weight", "self_attn.k_norm.weight"
"""Names of tensors."""

_STORED = {"F32", "F16", "BF16"}
"""Types of a tensor in a file."""

_WINDOWS = {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}

_KINDS = {
    "LlamaForCausalLM": _Kind(frozenset({"attention_bias", "mlp_bias"})),
    "MistralForCausalLM": _Kind(frozenset({"sliding_window"})),
    "Qwen2ForCausalLM": _Kind(frozenset(_WINDOWS)),
    "Qwen3ForCausalLM": _Kind(frozenset({"attention_bias", *_WINDOWS}), qk_norm=True),
}


class Unknown(Exception):
    """Something that is not known to be read right; says what."""


def read(directory: Path, config: Config, dtype: torch.dtype | None, device: torch.device) -> Llama:
    """Reads a model.

    Args:
        directory: Where its files are.
        config: What its `config.json` holds.
        dtype: Of the weights; None for what the configuration says.
        device: Where they go.

    Raises:
        Unknown: `transformers` has to read it, or to say what is wrong with it.
        Exception: There is no room for it; see `room.ran_out`.
    """
    try:
        return _Reader(directory, config, dtype, device).model()
    except Exception as error:  # files may hold anything
        if ran_out(error):
            raise
        ours = type(error) is ValueError
        raise Unknown(str(error) if ours else f"{type(error).__name__}: {error}") from error


class _Reader:
    """Reads one model; anything may raise."""

    def __init__(
        self, directory: Path, config: Config, dtype: torch.dtype | None, device: torch.device
    ) -> None:
        (self._class,) = config["architectures"]
        self._kind = _KINDS[self._class]
        _insist(self._class.lower() == f"{config['model_type']}forcausallm", "model_type")
        unknown = set(config) - _NO_MATTER - _READ - self._kind.settings
        _insist(not unknown, f"settings {', '.join(sorted(unknown))}")
        _insist(config["hidden_act"] == "silu", "hidden_act")
        self._config, self._device = config, device
        self._dtype = dtype or _TYPES[config.get("dtype") or config["torch_dtype"]]
        self._eos = _eos(directory, config)
        self._depth = _count(config["num_hidden_layers"])
        self._vocab, self._hidden = _count(config["vocab_size"]), _count(config["hidden_size"])
        self._inner = _count(config["intermediate_size"])
        self._heads = _count(config["num_attention_heads"])
        self._kv_heads = _count(config["num_key_value_heads"])
        _insist(self._heads % self._kv_heads == 0, "num_key_value_heads")
        self._size = self._head_size()
        self._max_len = _count(config["max_position_embeddings"])
        self._epsilon = float(config["rms_norm_eps"])
        self._rotary = Rotary.configured(config, self._size).to(device)
        self._files = weight_files.opened(directory)

    def model(self) -> Llama:
        """The model; its layers are read when they are asked for."""
        windows, shapes = self._windows(), self._shapes()
        parameters = sum(self._look(name, shape) for name, shape in shapes.items())
        embeddings = self._tensor(_EMBEDDINGS)
        head = self._tensor(_HEAD) if _HEAD in shapes else embeddings
        facts = Facts(
            kind=self._class,
            parameters=parameters,
            output_weight=head,
            embeddings=embeddings,
            layers=self._depth,
            vocab_size=self._vocab,
            max_len=self._max_len,
            eos_token_ids=ends(self._eos, self._vocab),
            dtype=self._dtype,
        )
        return Llama(
            facts=facts,
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_size=self._size,
            inner=self._inner,
            depth=self._depth,
            scale=self._size**-0.5,
            epsilon=self._epsilon,
            rotaries=(self._rotary,),
            embeddings=embeddings,
            norm=self._tensor(_NORM),
            head=Linear(head, None),
            layers=(self._layer(layer, window) for layer, window in enumerate(windows)),
        )

    def _head_size(self) -> int:
        size = self._config.get("head_dim")
        if size is None:  # Qwen3 has another by default than the others
            _insist(not self._kind.qk_norm and self._hidden % self._heads == 0, "no head_dim")
            size = self._hidden // self._heads
        _insist(_count(size) % 2 == 0, "head_dim")
        return int(size)

    def _windows(self) -> list[int | None]:
        """What each layer sees."""
        config = self._config
        if self._class == "MistralForCausalLM":
            window = config["sliding_window"]
            return [None if window is None else _count(window)] * self._depth
        sliding, kinds = self._is_set("use_sliding_window", False), config.get("layer_types")
        if kinds is None:
            _insist(not sliding, "no layer_types")
            return [None] * self._depth
        known = set(kinds) <= {"full_attention", "sliding_attention"}
        _insist(known and len(kinds) == self._depth, "layer_types")
        size = _count(config["sliding_window"]) if sliding else None
        return [size if kind == "sliding_attention" else None for kind in kinds]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model."""
        shapes: dict[str, tuple[int, ...]] = {
            _EMBEDDINGS: (self._vocab, self._hidden),
            _NORM: (self._hidden,),
        }
        if self._is_set("tie_word_embeddings"):
            _insist(_HEAD not in self._files, f"{_HEAD} beside tie_word_embeddings")
        else:
            shapes[_HEAD] = (self._vocab, self._hidden)
        layer = self._layer_shapes()
        for index in range(self._depth):
            shapes |= {f"{_LAYERS}.{index}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a layer."""
        hidden, inner = self._hidden, self._inner
        queries, keys = self._heads * self._size, self._kv_heads * self._size
        products = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in products.items():
            shapes[f"{name}.weight"] = shape
            if self._has_bias(name):
                shapes[f"{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}.weight"] = (hidden,)
        if self._kind.qk_norm:
            shapes |= dict.fromkeys(_QK_NORMS, (self._size,))
        return shapes

    def _has_bias(self, product: str) -> bool:
        if self._class == "Qwen2ForCausalLM":
            return product.startswith("self_attn") and product != "self_attn.o_proj"
        return self._is_set("mlp_bias" if product.startswith("mlp") else "attention_bias", False)

    def _is_set(self, setting: str, default: bool | None = None) -> bool:
        """What a setting says that is true or false."""
        said = self._config.get(setting, default)
        _insist(isinstance(said, bool), setting)
        return bool(said)

    def _look(self, name: str, shape: tuple[int, ...]) -> int:
        """How many numbers a tensor has, which is there and of this shape."""
        stored = self._files[name].get_slice(name)
        right = tuple(stored.get_shape()) == shape and stored.get_dtype() in _STORED
        _insist(right, f"shape or type of {name}")
        return math.prod(shape)

    def _layer(self, index: int, window: int | None) -> LlamaLayer:
        names = self._layer_shapes()
        tensors = {name: self._tensor(f"{_LAYERS}.{index}.{name}") for name in names}

        def linear(name: str) -> Linear:
            return Linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

        q_norm, k_norm = map(tensors.get, _QK_NORMS)
        return LlamaLayer(
            q=linear("self_attn.q_proj"),
            k=linear("self_attn.k_proj"),
            v=linear("self_attn.v_proj"),
            o=linear("self_attn.o_proj"),
            mlp=Mlp(
                Linear.joined(linear("mlp.gate_proj"), linear("mlp.up_proj")),
                linear("mlp.down_proj"),
            ),
            attention_norm=tensors["input_layernorm.weight"],
            mlp_norm=tensors["post_attention_layernorm.weight"],
            q_norm=q_norm,
            k_norm=k_norm,
            window=window,
        )

    def _tensor(self, name: str) -> Tensor:
        """A tensor of its own: what the file's pages hold may change."""
        read: Tensor = self._files[name].get_tensor(name)
        return read.to(self._device, self._dtype, copy=True)


def _insist(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _count(number: object) -> int:
    """A number of something."""
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} where a count is expected")
    return number


def _eos(directory: Path, config: Config) -> object:
    """What ends a text, see `ends`: as generation is configured, or else the model."""
    file = directory / "generation_config.json"
    generation = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    eos = generation.get("eos_token_id")
    return config["eos_token_id"] if eos is None else eos  # where neither is there, one is assumed
