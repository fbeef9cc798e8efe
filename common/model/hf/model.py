"""A causal language model loaded by `transformers`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from common.errors import ModelError, first_line
from common.model import weight_files
from common.model.assistant.checkpoint import KINDS
from common.model.attention import AttentionContext
from common.model.facts import Facts, ends
from common.model.hf import attention, pictures, report
from common.model.hf.layers import bring, is_experts, replace_linears, tiled_experts
from common.model.hf.parts import llama_of
from common.model.hf.rotary import replace_rotary
from common.model.hf.shape import body_of, lacks
from common.model.hf.taps import Taps
from common.model.hf.widening import check_loaded, check_stored, even, widen, widens
from common.model.int4 import Int4Product
from common.model.linear import MakeLinear, as_layer, linear_maker, tile_rows
from common.model.llama import Llama
from common.model.output import Computed
from common.model.quantized import IntegerProduct, Quantize, WidenedLinear, integer_products

_STATIC_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}

_LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Layer kinds whose mask is a matter of position alone."""


class HfModel:
    """A loaded model.

    Its layers are the host's until they are taken: a device has to hold them only as they are run.

    Args:
        directory: Of its files, in Hugging Face form.
        dtype: Of the weights; None for what the files say.
        device: Where it runs.
        parallel: Whether the processes of `torch.distributed` split its weights.

    Raises:
        ModelError: Missing, corrupt or unsupported; says which file or what.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype | None,
        device: torch.device,
        *,
        parallel: bool = False,
    ) -> None:
        config, said = config_of(directory)
        _check_architecture(config)
        self._model: Any = model_of(directory, config, said, dtype, parallel=parallel)
        self._device, self._parallel = device, parallel
        self._there: list[Tensor] = []  # what has been brought
        for part in [] if parallel else _tables(self._model):
            self._there += bring(part, device, there=self._there).parameters()
        text = config.get_text_config()
        layers = attention.layers(self._model)
        if len(layers) != text.num_hidden_layers:
            raise ModelError(
                f"{_kind(config)} cannot be served: {text.num_hidden_layers} layers, but "
                f"{len(layers)} of them are attention; recurrent and convolutional state cannot "
                "be rolled back"
            )
        if not all(getattr(layer, "is_causal", True) for layer in layers):
            raise ModelError(f"{_kind(config)} cannot be served: its tokens see those after them")
        self.facts = Facts(
            kind=type(self._model).__name__,
            parameters=sum(weight.numel() for weight in self._model.parameters()),
            output_weight=self._model.get_output_embeddings().weight.data,
            embeddings=self._model.get_input_embeddings().weight.data,
            layers=len(layers),
            vocab_size=text.vocab_size,
            max_len=_max_len(text),
            eos_token_ids=ends_of(self._model),
            dtype=next(self._model.parameters()).dtype,
        )
        """What is known of it."""

    @property
    def lacks(self) -> str:
        """Why it is not of Llama's shape; nothing where it is."""
        return lacks(self._model, self.facts)

    @property
    def unroundable(self) -> str:
        """Why its weights would stay what they are where `modules` are run; nothing otherwise."""
        return _unroundable(self._model)

    def llama(self) -> Llama:
        """Its parts, where it lacks none; its layers are taken out as they are given away."""
        return llama_of(self._model, self.facts)

    def modules(self, context: AttentionContext, quantize: Quantize) -> tuple[_Modules, str]:
        """The model as the engine calls it, and the name of its layers.

        Args:
            context: Its cache and batch.
            quantize: What its weights are rounded to.

        Raises:
            ModelError: It cannot be quantised.
        """
        if quantize != "none" and (reason := self.unroundable):
            raise ModelError(
                f"{self.facts.kind} cannot be quantised here: {reason}; quantize: must be none"
            )
        if not self._parallel:
            bring(self._model, self._device, there=self._there)
        attention.attach(self._model, context)
        name, head = linear_maker(self._device, self.facts.dtype)
        make = head
        if quantize == "int4":
            name, make = f"{name}-int4", as_layer(Int4Product)
        elif quantize == "int8":
            name, make = _int8(self._device)
            head = make
        replace_rotary(self._model, context, self.facts.max_len)
        if replace_linears(self._model, self._device, make, head):
            name += f"-others{tile_rows(self._device)}"
        return _Modules(self._model, context, self._device), name


def _tables(model: Any) -> Iterator[nn.Module]:
    """What a model has by token: embeddings, and the output layer."""
    yield model.get_input_embeddings()
    yield model.get_output_embeddings()
    per_layer = getattr(body_of(model), "embed_tokens_per_layer", None)
    if per_layer is not None:
        yield per_layer


def ends_of(model: Any) -> tuple[int, ...]:
    """Ids that end a text of a model's: as generation is configured, or else the model."""
    text = model.config.get_text_config()
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return ends(getattr(text, "eos_token_id", None) if eos is None else eos, text.vocab_size)


def config_of(directory: Path) -> tuple[Any, dict[str, Any]]:
    """A model's configuration, and what that says of weights held in fewer bits.

    Raises:
        ModelError: It cannot be used; says why.
    """
    report.have_logged()
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        return config, widen(config)
    except Exception as error:  # as below
        problem = f"config.json cannot be used: {first_line(error)}"
        raise ModelError(f"{directory}: {problem}") from error


def _check_architecture(config: Any) -> None:
    """Refuses what the engine cannot compute exactly."""
    kind = _kind(config)
    if config.model_type in KINDS:
        raise ModelError(
            f"{kind} cannot be served: it drafts with the keys of another model; give it as --eagle"
        )
    cls = pictures.reader_of(config)
    if cls is None and pictures.lacks_text_class(config):
        raise ModelError(
            f"{kind} cannot be served: it reads pictures; of such models the text is served where "
            f"transformers has a causal language model for it, and of {pictures.KNOWN}"
        )
    if cls is None or config.is_encoder_decoder:
        raise ModelError(f"{kind} cannot be served: not a causal language model")
    if isinstance(cls, tuple):
        cls = cls[0]
    if getattr(cls, "_is_stateful", False):
        raise ModelError(
            f"{kind} cannot be served: it keeps recurrent state, which cannot be rolled back"
        )
    if "ALL_ATTENTION_FUNCTIONS" not in inspect.getsource(inspect.getmodule(cls) or cls):
        raise ModelError(
            f"{kind} cannot be served: its attention does not go through AttentionInterface"
        )
    text = config.get_text_config()
    odd = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if odd:
        raise ModelError(f"{kind} cannot be served: it has layers of type {', '.join(sorted(odd))}")
    for layer in text.per_layer_config if getattr(text, "is_heterogeneous", False) else [text]:
        heads = getattr(layer, "num_attention_heads", 0)
        groups = getattr(layer, "num_key_value_heads", None)
        if isinstance(groups, int) and (groups < 1 or heads % groups):
            raise ModelError(f"{kind} cannot be served: {heads} heads for {groups} key/value heads")


def model_of(
    directory: Path,
    config: Any,
    said: dict[str, Any],
    dtype: torch.dtype | None,
    *,
    parallel: bool = False,
) -> Any:
    """A model of `transformers` with its weights, without what only pictures go through.

    Args:
        directory: Of its files.
        config: Its configuration.
        said: What that says of weights held in fewer bits.
        dtype: Of the weights; None for what the files say.
        parallel: Whether the processes of `torch.distributed` split them.

    Raises:
        ModelError: They are missing, corrupt or not all there; says which.
    """
    if not hasattr(config, "transformers_weights"):  # which names them otherwise
        weight_files.check_form(directory)
        check_stored(directory, weight_files.stored(directory), said)
    model: Any = _weights(directory, config, dtype, parallel)
    pictures.blind(model)
    model.eval().requires_grad_(False)
    if widens(said):
        even(model, model.config.get_text_config().dtype)
    return model


def _weights(directory: Path, config: Any, dtype: torch.dtype | None, parallel: bool) -> nn.Module:
    attention.register()
    ALL_EXPERTS_FUNCTIONS.register(attention.NAME, tiled_experts)
    try:
        model, found = pictures.loader_of(config).from_pretrained(
            directory,
            config=config,
            dtype=dtype or "auto",
            attn_implementation=attention.NAME,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            trust_remote_code=False,
            output_loading_info=True,
            **({"tp_plan": "auto"} if parallel else {}),
        )
    except Exception as error:  # transformers raises many kinds; all mean the same to the operator
        raise ModelError(f"{directory}: weights cannot be loaded: {first_line(error)}") from error
    report.check(directory, found, config.get_text_config())
    check_loaded(directory, model)
    for module in model.modules():
        if is_experts(module):
            module.config._experts_implementation = attention.NAME
    loaded: nn.Module = model
    return loaded


def _max_len(text: Any) -> int:
    limit = int(text.max_position_embeddings)
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [rope] if "rope_type" in rope else [r for r in rope.values() if isinstance(r, dict)]
    for one in nested:
        if one.get("rope_type", "default") not in _STATIC_ROPE:
            # These change their frequencies with the longest sequence of a batch; up to the
            # original length they do not.
            original = one.get("original_max_position_embeddings") or limit
            limit = min(limit, int(original))
    return limit


def _kind(config: Any) -> str:
    names = getattr(config, "architectures", None) or [type(config).__name__]
    return f"{names[0]} ({config.model_type})"


def _int8(device: torch.device) -> tuple[str, MakeLinear]:
    """Layers of int8 weights, and their name."""
    if device.type == "cpu" and integer_products():
        return "int8", as_layer(IntegerProduct)
    tile = tile_rows(device)
    return f"widened{tile}-int8", partial(WidenedLinear, tile=tile)


def _unroundable(model: nn.Module) -> str:
    """Why a model's weights would stay what they are; nothing where they can be rounded."""
    for module in model.modules():
        if is_experts(module):
            return (
                "its experts are no linear layers, and kernels of ours round them to int8 alone, "
                "on CPUs from bfloat16"
            )
        if type(module) is nn.Linear and type(module.weight.data) is not Tensor:
            name = type(module.weight.data).__name__
            if name == "DTensor":
                return "a tensor-parallel plan has split it"
            return f"its weights are another library's, of class {name}"
    return ""


class _Modules:
    """Calls a `transformers` model the way the engine does.

    Args:
        model: It.
        context: Its cache and batch.
        device: Where it runs.
    """

    def __init__(self, model: nn.Module, context: AttentionContext, device: torch.device) -> None:
        self._model, self._context = model, context
        # Four dimensions tell transformers that the mask is made; it then looks no further.
        self._ready_mask = torch.zeros(1, 1, 1, 1, device=device)
        self._states = torch.empty(0)
        output_layer: Any = model.get_output_embeddings()  # type: ignore[operator]
        output_layer.register_forward_pre_hook(self._keep_states)
        self._taps = Taps(model)

    def __call__(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> Computed:
        learning = self._context.pool is None  # also which windows the masks would have
        self._taps.begin(self._context.wanted_taps)
        out = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=None if learning else self._ready_mask,
            use_cache=False,
            logits_to_keep=wanted,
        )
        return Computed(out.logits[0], self._states[0], features=self._taps.take(len(ids)))

    def _keep_states(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        self._states = inputs[0]
