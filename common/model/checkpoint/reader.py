"""Reads one model from its files: its configuration, its tensors' shapes, then layer by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from common.model import weight_files
from common.model.checkpoint.experts import Experts
from common.model.checkpoint.kinds import KINDS, NO_MATTER, READ
from common.model.checkpoint.settings import Config, count, insist, is_set
from common.model.facts import Facts, ends
from common.model.kv_cache import LayerShape
from common.model.llama import Linear, Llama, LlamaLayer, Mixture, Mlp
from common.model.room import give_back, ran_out
from common.model.rotary import Rotary, RotarySettings

_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_EMBEDDINGS, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_LAYERS = "model.layers"
_QK_NORMS = "self_attn.q_norm.weight", "self_attn.k_norm.weight"
"""Names of tensors."""

_STORED = {"F32", "F16", "BF16"}
"""Types of a tensor in a file."""


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
        insist(self._class in KINDS, f"architecture {self._class} is not read here")
        self._kind = KINDS[self._class]
        named = config["model_type"].replace("_", "")
        insist(self._class.lower() == f"{named}forcausallm", "model_type")
        written = self._kind.experts
        known = NO_MATTER | READ | self._kind.settings | (written.settings if written else set())
        unknown = set(config) - known
        insist(not unknown, f"settings {', '.join(sorted(unknown))}")
        insist(config["hidden_act"] == "silu", "hidden_act")
        insist(config.get("clip_qkv") is None, "clip_qkv")
        self._config, self._device = config, device
        self._dtype = dtype or _TYPES[config.get("dtype") or config["torch_dtype"]]
        self._eos = _eos(directory, config)
        self._depth = count(config["num_hidden_layers"])
        self._vocab, self._hidden = count(config["vocab_size"]), count(config["hidden_size"])
        self._inner = count(config["intermediate_size"])
        self._heads = count(config["num_attention_heads"])
        self._kv_heads = count(config["num_key_value_heads"])
        insist(self._heads % self._kv_heads == 0, "num_key_value_heads")
        self._size = self._head_size()
        self._max_len = count(config["max_position_embeddings"])
        self._epsilon = float(config["rms_norm_eps"])
        self._experts = Experts.configured(written, config, self._depth) if written else None
        if self._kind.default_rotary:
            insist(RotarySettings.of(config).kind == "default", "rope_type")
        self._rotary = Rotary.configured(config, self._size).to(device)
        self._files = weight_files.opened(directory)

    def model(self) -> Llama:
        """The model; its layers are read when they are asked for."""
        windows, shapes = self._windows(), self._shapes()
        others = [name for name in self._files if name not in shapes and _matters(name)]
        insist(not others, f"tensor {min(others, default='')}")
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
            shapes=[LayerShape(self._kv_heads, self._size, self._size)] * self._depth,
            inner=max(self._inner_of(layer) for layer in range(self._depth)),
            has_experts=any(self._experts_of(layer) for layer in range(self._depth)),
            whole_norms=self._kind.norms == "whole",
            depth=self._depth,
            scale=self._size**-0.5,
            epsilon=self._epsilon,
            rotaries=(self._rotary,),
            embeddings=embeddings,
            norm=self._tensor(_NORM),
            head=Linear(head, None),
            layers=self._layers(windows),
        )

    def _experts_of(self, layer: int) -> Experts | None:
        return self._experts if self._experts and layer in self._experts.layers else None

    def _inner_of(self, layer: int) -> int:
        """Numbers between the two products of what all rows take of a layer; 0 without."""
        experts = self._experts_of(layer)
        return experts.shared if experts else self._inner

    def _head_size(self) -> int:
        size = self._config.get("head_dim")
        if size is None:
            insist(self._kind.whole_heads and self._hidden % self._heads == 0, "no head_dim")
            size = self._hidden // self._heads
        insist(count(size) % 2 == 0, "head_dim")
        return int(size)

    def _windows(self) -> list[int | None]:
        """What each layer sees."""
        config, kinds = self._config, self._config.get("layer_types")
        sliding = is_set(config, "use_sliding_window", False)
        if self._kind.alike:
            sliding = sliding or "use_sliding_window" not in self._kind.settings
            window = config["sliding_window"] if sliding else None
            return [None if window is None else count(window)] * self._depth
        if kinds is None:
            insist(not sliding, "no layer_types")
            return [None] * self._depth
        known = set(kinds) <= {"full_attention", "sliding_attention"}
        insist(known and len(kinds) == self._depth, "layer_types")
        insist(sliding or "sliding_attention" not in kinds, "layer_types")
        size = count(config["sliding_window"]) if sliding else None
        return [size if kind == "sliding_attention" else None for kind in kinds]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model."""
        shapes: dict[str, tuple[int, ...]] = {
            _EMBEDDINGS: (self._vocab, self._hidden),
            _NORM: (self._hidden,),
        }
        if is_set(self._config, "tie_word_embeddings"):
            insist(_HEAD not in self._files, f"{_HEAD} beside tie_word_embeddings")
        else:
            shapes[_HEAD] = (self._vocab, self._hidden)
        for index in range(self._depth):
            layer = self._layer_shapes(index)
            shapes |= {f"{_LAYERS}.{index}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer_shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        """Every tensor of a layer, by its name there."""
        hidden, inner = self._hidden, self._inner
        queries, keys = self._heads * self._size, self._kv_heads * self._size
        reading = {"q": queries, "k": keys, "v": keys}
        gating = {"gate": inner, "up": inner}
        if self._kind.joined:
            reading, gating = {"qkv": queries + 2 * keys}, {"gate_up": 2 * inner}
        products = {f"self_attn.{name}_proj": (size, hidden) for name, size in reading.items()}
        products["self_attn.o_proj"] = (hidden, queries)
        shapes: dict[str, tuple[int, ...]] = {}
        if experts := self._experts_of(index):
            shapes |= experts.shapes()
        else:
            products |= {f"mlp.{name}_proj": (size, hidden) for name, size in gating.items()}
            products["mlp.down_proj"] = (hidden, inner)
        for name, shape in products.items():
            shapes[f"{name}.weight"] = shape
            if self._has_bias(name):
                shapes[f"{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}.weight"] = (hidden,)
        if self._kind.norms:
            whole = self._kind.norms == "whole"
            sizes = (queries, keys) if whole else (self._size, self._size)
            shapes |= {name: (size,) for name, size in zip(_QK_NORMS, sizes, strict=True)}
        return shapes

    def _has_bias(self, product: str) -> bool:
        if product.startswith("mlp"):
            return is_set(self._config, "mlp_bias", False)
        setting, default, output = self._kind.bias
        if not setting or (product == "self_attn.o_proj" and not output):
            return False
        return is_set(self._config, setting, default)

    def _look(self, name: str, shape: tuple[int, ...]) -> int:
        """How many numbers a tensor has, which is there and of this shape."""
        stored = self._files[name].get_slice(name)
        right = tuple(stored.get_shape()) == shape and stored.get_dtype() in _STORED
        insist(right, f"shape or type of {name}")
        return math.prod(shape)

    def _layers(self, windows: Sequence[int | None]) -> Iterator[LlamaLayer]:
        for index, window in enumerate(windows):
            yield self._layer(index, window)
            give_back()

    def _layer(self, index: int, window: int | None) -> LlamaLayer:
        names = self._layer_shapes(index)

        def tensor(name: str) -> Tensor:
            return self._tensor(f"{_LAYERS}.{index}.{name}")

        def linear(name: str) -> Linear:
            weight, bias = f"{name}.weight", f"{name}.bias"
            return Linear(tensor(weight), tensor(bias) if bias in names else None)

        def of_heads() -> Iterable[Linear]:
            if not self._kind.joined:
                return (linear(f"self_attn.{part}_proj") for part in "qkv")
            keys = self._kv_heads * self._size
            return linear("self_attn.qkv_proj").parts((self._heads * self._size, keys, keys))

        def mlp() -> Mlp | Mixture:
            if experts := self._experts_of(index):
                return experts.mixture(tensor)
            if self._kind.joined:
                return Mlp(linear("mlp.gate_up_proj"), linear("mlp.down_proj"))
            gate_up = Linear.joined(linear("mlp.gate_proj"), linear("mlp.up_proj"))
            return Mlp(gate_up, linear("mlp.down_proj"))

        q, k, v = of_heads()
        q_norm, k_norm = (tensor(name) if name in names else None for name in _QK_NORMS)
        return LlamaLayer(
            q=q,
            k=k,
            v=v,
            o=linear("self_attn.o_proj"),
            mlp=mlp(),
            attention_norm=tensor("input_layernorm.weight"),
            mlp_norm=tensor("post_attention_layernorm.weight"),
            q_norm=q_norm,
            k_norm=k_norm,
            window=window,
        )

    def _tensor(self, name: str) -> Tensor:
        """A tensor of its own: what the file's pages hold may change."""
        read: Tensor = self._files[name].get_tensor(name)
        return read.to(self._device, self._dtype, copy=True)


def _matters(name: str) -> bool:
    """Whether a tensor may change what is computed; of angles old files had a copy."""
    return not name.endswith("rotary_emb.inv_freq")


def _eos(directory: Path, config: Config) -> object:
    """What ends a text, see `ends`: as generation is configured, or else the model."""
    file = directory / "generation_config.json"
    generation = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    eos = generation.get("eos_token_id")
    return config["eos_token_id"] if eos is None else eos  # where neither is there, one is assumed
