"""Multi-token prediction layers as `transformers` has them, for models that bring some along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from common.errors import ModelError, first_line
from common.model import weight_files
from common.model.hf import attention
from common.model.hf.heads import check_sizes
from common.model.hf.layers import bring, children, linear_weights
from common.model.hf.model import config_of
from common.model.hf.widening import check_stored
from common.model.kv_cache import LayerShape
from common.model.linear import ProductLinear, few_row_products, packing_works
from common.model.loader import LoadedModel
from common.model.mtp.layer import Attended, MtpLayer
from common.model.room import ran_out

_NAME = "paceline-mtp"
"""The attention implementation's name in `transformers`' registry."""

_ROWS = "paceline_rows"

_UNUSED = "its multi-token prediction layers cannot be used"

_MOST_SAID = 300
"""Characters of what `transformers` has to say against them: it may name all tensors."""

_KINDS = "layer_types", "mlp_layer_types"
"""Settings that say of which kind each layer is."""


def load(path: Path, target: LoadedModel) -> MtpLayer:
    """Reads the first such layer of a model, to where that is.

    Args:
        path: The model's directory.
        target: It.

    Raises:
        ModelError: Corrupt, unsupported or of other sizes; says what.
    """
    config, said = config_of(path)
    text = config.get_text_config()
    sizes = (
        ("hidden_size", text.hidden_size, target.embeddings.shape[1]),
        ("vocab_size", text.vocab_size, target.vocab_size),
        ("num_hidden_layers", text.num_hidden_layers, target.layers),
    )
    check_sizes(path, target, sizes, "multi-token prediction layers draft for their own model")
    if said:
        problem = f"they are held in fewer bits ({said.get('quant_method')})"
        raise ModelError(f"{path}: {_UNUSED}: {problem}")
    check_stored(path, weight_files.stored(path), said)
    try:
        # Where a processor imitates the model's type, in what is fast.
        plain = target.device.type != "cpu" or packing_works(target.dtype)
        dtype = target.dtype if plain else torch.float32
        return _Layer(_model_of(config, dtype, target.device), target, dtype)
    except Exception as error:  # `transformers`, or our use of it, may raise anything
        if ran_out(error):
            raise
        problem = first_line(error)[:_MOST_SAID]
        if not isinstance(error, ModelError):
            problem = f"{type(error).__name__}: {problem}"
        raise ModelError(f"{path}: {_UNUSED}: {problem}") from error


def _model_of(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The layer, as a model of which embeddings and output layer are not there."""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError as error:
        raise ModelError("transformers 5.20 or newer is needed for them") from error
    text = config.get_text_config()
    text.num_mtp_layers = 1  # further ones expect what those before them leave
    for name in _KINDS:
        kinds = getattr(text, name, None)
        if kinds is not None and getattr(text, f"mtp_{name}", None) is None:
            setattr(text, f"mtp_{name}", kinds[-1:])
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, attention.mask)
    with torch.device("meta"):
        main: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=_NAME)
    first = text.num_hidden_layers
    main._keys_to_ignore_on_load_unexpected = [
        *(main._keys_to_ignore_on_load_unexpected or []),
        rf"\blayers\.{first}\.",
    ]
    body = main.get_decoder()
    body.rotary_emb = type(body.rotary_emb)(config=text).to(device)
    model = MtpModel.from_pretrained(main, device_map={"": device})
    bring(model.layers, device)
    return model.eval().requires_grad_(False)


class _KeysAreThere(Exception):
    """Ends a pass of which nothing but keys is wanted.

    Args:
        keys: Beside values. # [N, kv heads, D + V]
        key_size: D.
        window: See `MtpLayer`.
    """

    def __init__(self, keys: Tensor, key_size: int, window: int | None) -> None:
        super().__init__()
        self.keys, self.window = keys, window
        self.shape = LayerShape(keys.shape[1], key_size, keys.shape[2] - key_size)


class _Layer(MtpLayer):
    """The first layer of a model of such.

    Args:
        model: Of `transformers`.
        target: What it belongs to.
        dtype: To compute in.
    """

    def __init__(self, model: Any, target: LoadedModel, dtype: torch.dtype) -> None:
        assert target.output_weight is not None
        self._model, self._dtype = model, dtype
        self._embeddings = target.embeddings
        make = few_row_products(target.device, self._dtype)
        self._lm_head = make(target.output_weight, None)
        for parent, name, child in children(model.layers):
            if (weights := linear_weights(child)) is not None:
                setattr(parent, name, ProductLinear(make(*weights)))
        self._attended: Attended | None = None  # of a pass, all of which is wanted
        for module in attention.layers(model.layers[0]):
            setattr(module, _ROWS, self)
        self.taps = (target.layers,)
        zero = torch.zeros(1, dtype=torch.int64, device=target.device)
        found = self._keys(zero, target.embeddings.index_select(0, zero), zero)
        self.shape, self.window = found.shape, found.window
        # The window is known now: no further pass makes a mask to tell it.
        model.create_masks_for_mtp_layer = lambda *_: {"attention_mask": None}

    def keys(self, tokens: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        """See `MtpLayer`."""
        return self._keys(tokens, states, positions).keys

    @torch.inference_mode()
    def through(
        self, tokens: Tensor, states: Tensor, positions: Tensor, attended: Attended
    ) -> tuple[Tensor, Tensor]:
        """See `MtpLayer`."""
        left = self._run(tokens, states, positions, attended)
        return left, self._lm_head(left).float()

    @torch.inference_mode()
    def _keys(self, tokens: Tensor, states: Tensor, positions: Tensor) -> _KeysAreThere:
        try:
            self._run(tokens, states, positions, None)
        except _KeysAreThere as found:
            return found
        raise ModelError("its attention does not go through AttentionInterface")

    def _run(
        self, tokens: Tensor, states: Tensor, positions: Tensor, attended: Attended | None
    ) -> Tensor:
        self._attended = attended
        embedded = self._embeddings.index_select(0, tokens)
        left: Tensor = self._model.forward_layer(
            0,
            states[None].to(self._dtype),
            positions[None],
            None,
            inputs_embeds=embedded[None].to(self._dtype),
        )
        return left[0]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """What rows see. # [1, H, N, D], [1, Hkv, N, D], [1, Hkv, N, V] -> [1, N, H, V]"""
        own = torch.cat((key[0], value[0]), dim=-1).transpose(0, 1)
        if self._attended is None:
            raise _KeysAreThere(own, key.shape[3], window)
        queries = query[0].transpose(0, 1).float() * scaling
        seen = self._attended(queries, own.float())
        return seen.view(1, len(own), query.shape[1], -1).to(query.dtype)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: attention.Mask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The signature is `transformers`'; see `attention.paged_attention`."""
    if odd := [name for name in ("softcap", "s_aux") if others.get(name) is not None]:
        raise ModelError(f"its attention has {odd[0]}")
    layer: _Layer = getattr(module, _ROWS)
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    window = attention.window(0, attention_mask, sliding_window)
    return layer.attend(query, key, value, scaling, window), None
