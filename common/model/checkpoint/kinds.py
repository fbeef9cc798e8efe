"""Kinds of models that are read from their files, and how they differ."""

from __future__ import annotations

from typing import Literal, NamedTuple

NO_MATTER = {
    "attention_dropout",
    "bos_token_id",
    "embd_pdrop",
    "initializer_range",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "transformers_version",
    "use_cache",
    "_name_or_path",
}
"""Settings that change nothing in how a row is computed."""

READ = {
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
"""Settings that are read of every kind."""


class Written(NamedTuple):
    """How a kind of model has its experts in its files."""

    numbers: tuple[str, ...] = ("num_experts", "num_local_experts")
    """Settings that say how many there are: one of them."""
    inner: str = "moe_intermediate_size"
    """The setting of an expert's size."""
    shared: str = ""
    """The setting of the size of what all rows take beside them; none do where it is empty."""
    summed: str = "norm_topk_prob"
    """The setting that says whether weights add up to one; they always do where it is empty."""
    part: str = "mlp"
    """What a layer calls them and their router."""
    products: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """What an expert calls what it gates with, what is gated, and what comes after."""

    @property
    def settings(self) -> set[str]:
        """Those that are read of it."""
        named = {*self.numbers, self.inner, self.shared, self.summed, "num_experts_per_tok"}
        return named - {""}


class Bias(NamedTuple):
    """Whether attention's products of a kind of model have biases."""

    setting: str = "attention_bias"
    """The one that says so; they never have where it is empty."""
    default: bool = False
    """What it says where it is not there."""
    output: bool = True
    """Whether it speaks of the last of them, too, which has none otherwise."""


class Kind(NamedTuple):
    """How a kind of model differs from the others."""

    settings: frozenset[str]
    """It has beside `READ` and those of its experts."""
    norms: Literal["", "head", "whole"] = ""
    """Of queries and keys: none, one of each head, or one of all heads at once."""
    bias: Bias = Bias()
    """Of what attention multiplies by."""
    whole_heads: bool = True
    """Whether all heads have the hidden size together, where there is no setting of theirs."""
    alike: bool = False
    """Whether all layers have the window of the configuration, where that is in use."""
    joined: bool = False
    """Whether products of one input are one tensor."""
    default_rotary: bool = False
    """Whether its rotary embeddings are known of the default type alone."""
    experts: Written | None = None
    """Those of its layers, or of some of them."""


_WINDOW = {"sliding_window", "use_sliding_window", "max_window_layers"}
_SOME_LAYERS = {"decoder_sparse_step", "mlp_only_layers"}
_QKV = Bias("qkv_bias", default=True, output=False)

KINDS = {
    "LlamaForCausalLM": Kind(frozenset({"attention_bias", "mlp_bias"})),
    "MistralForCausalLM": Kind(frozenset({"sliding_window"}), alike=True),
    "MixtralForCausalLM": Kind(
        frozenset({"sliding_window"}),
        alike=True,
        experts=Written(
            inner="intermediate_size",
            summed="",
            part="block_sparse_moe",
            products=("w1", "w3", "w2"),
        ),
    ),
    "OlmoeForCausalLM": Kind(
        frozenset({"attention_bias", "clip_qkv"}),
        norms="whole",
        experts=Written(inner="intermediate_size"),
    ),
    "Phi3ForCausalLM": Kind(
        frozenset(
            {"attention_bias", "auto_map", "original_max_position_embeddings", "sliding_window"}
        ),
        bias=Bias(""),  # whatever attention_bias says
        alike=True,
        joined=True,
        default_rotary=True,
    ),
    "Qwen2ForCausalLM": Kind(frozenset({"layer_types", *_WINDOW}), bias=_QKV),
    "Qwen2MoeForCausalLM": Kind(
        frozenset({"layer_types", "qkv_bias", *_WINDOW, *_SOME_LAYERS}),
        bias=_QKV,
        experts=Written(("num_experts",), shared="shared_expert_intermediate_size"),
    ),
    "Qwen3ForCausalLM": Kind(
        frozenset({"attention_bias", "layer_types", *_WINDOW}), norms="head", whole_heads=False
    ),
    "Qwen3MoeForCausalLM": Kind(
        frozenset({"attention_bias", *_WINDOW, *_SOME_LAYERS}),
        norms="head",
        whole_heads=False,
        alike=True,
        experts=Written(),
    ),
}
"""By class in `transformers`."""
