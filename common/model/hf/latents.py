"""What latent attention of `transformers` is made of, as products that make whole heads.

A key there is made of latents but for some numbers, which are turned by its position and the same
in all heads; a value may be shorter than a key. Here both are products of the latents and of what
is turned: ones copy that to every head, and zeros fill values up, of which nothing comes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from common.model.hf.feed_forward import linear_of
from common.model.llama import Latents, Linear


def is_latent(attention: Any) -> bool:
    """Whether keys and values are made of latents (multi-head latent attention)."""
    return hasattr(attention, "kv_a_proj_with_mqa")


def latents_lack(attention: Any, rotary: Any) -> str:
    """Why latent attention is not known; nothing where it is.

    Args:
        attention: Of a layer.
        rotary: The model's rotary embeddings.
    """
    still, turned = attention.qk_nope_head_dim, attention.qk_rope_head_dim
    latents = attention.q_lora_rank or 0, attention.kv_lora_rank
    if any(count % 2 for count in (still, turned, *latents)):
        return f"heads of {still} and {turned} numbers, made of {latents}: some are odd"
    if 2 * len(rotary.inv_freq) != turned:
        return f"{2 * len(rotary.inv_freq)} of {turned} numbers are turned"
    if attention.num_key_value_groups != 1:
        return "its latents make fewer keys than there are queries"
    if attention.v_head_dim > still + turned:
        return "its values have more numbers than its keys"
    return ""


def heads_of(attention: Any) -> tuple[Latents, Linear, Linear, Linear, Linear]:
    """What attention of a layer is made of: its latents, queries, keys, values and output, as in
    `LlamaLayer`. The last numbers of queries and keys are those that are turned."""
    down, norm = [linear_of(attention.kv_a_proj_with_mqa)], attention.kv_a_layernorm
    q_norm, queries = None, attention.q_proj
    if queries is None:
        down.insert(0, linear_of(attention.q_a_proj))
        q_norm, queries = attention.q_a_layernorm.weight.data, attention.q_b_proj
        assert attention.q_a_layernorm.variance_epsilon == norm.variance_epsilon
    k, v = _keys_and_values(attention)
    latents = Latents(Linear.joined(*down), q_norm, norm.weight.data, norm.variance_epsilon)
    return latents, linear_of(queries), k, v, _output(attention)


def sizes_of(attention: Any) -> tuple[int, int]:
    """How many latents queries are made of, and keys and values."""
    return attention.q_lora_rank or 0, attention.kv_lora_rank + attention.qk_rope_head_dim


def _keys_and_values(attention: Any) -> tuple[Linear, Linear]:
    size, turned = attention.qk_head_dim, attention.qk_rope_head_dim
    made, bias = linear_of(attention.kv_b_proj)
    assert bias is None, "which would be of whole heads"
    heads = made.view(-1, attention.qk_nope_head_dim + attention.v_head_dim, made.shape[1])
    still, values = heads.split([attention.qk_nope_head_dim, attention.v_head_dim], dim=1)
    copied = torch.eye(turned, dtype=made.dtype, device=made.device).expand(len(heads), -1, -1)
    keys = torch.cat((F.pad(still, (0, turned)), F.pad(copied, (attention.kv_lora_rank, 0))), dim=1)
    values = F.pad(values, (0, turned, 0, size - attention.v_head_dim))
    return Linear(keys.flatten(0, 1), None), Linear(values.flatten(0, 1), None)


def _output(attention: Any) -> Linear:
    """Of heads that are filled up."""
    weight, bias = linear_of(attention.o_proj)
    heads = weight.view(len(weight), -1, attention.v_head_dim)
    whole = F.pad(heads, (0, attention.qk_head_dim - attention.v_head_dim))
    return Linear(whole.flatten(1), bias)
