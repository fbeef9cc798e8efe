"""Assistants as `transformers` has them: Gemma 4's, which read the keys of what they draft for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from common.errors import ModelError
from common.model import weight_files
from common.model.assistant.weights import AssistantWeights, Clusters
from common.model.facts import Facts
from common.model.hf.feed_forward import linear_of
from common.model.hf.heads import check_sizes
from common.model.hf.layers import bring, linear_weights
from common.model.hf.model import config_of, model_of
from common.model.hf.parts import llama_of
from common.model.hf.shape import body_of, lacks
from common.model.loader import LoadedModel


def load(path: Path, target: LoadedModel) -> AssistantWeights:
    """Reads an assistant, to where its target is, in its type.

    Args:
        path: A directory in Hugging Face form.
        target: What it drafts for.

    Raises:
        ModelError: Missing, corrupt, unsupported or made for another target; says which file or
            what.
    """
    config, said = config_of(path)
    sizes = (
        ("backbone_hidden_size", config.backbone_hidden_size, target.embeddings.shape[1]),
        ("vocab_size", config.get_text_config().vocab_size, target.vocab_size),
    )
    check_sizes(path, target, sizes, "this assistant was made for another model")
    sources = _last_with_keys(path, target)
    weight_files.check_access(path)
    model: Any = bring(model_of(path, config, said, target.dtype), target.device)
    layers = body_of(model).layers
    facts = Facts(
        kind=type(model).__name__,
        parameters=sum(weight.numel() for weight in model.parameters()),
        output_weight=None,
        embeddings=model.get_input_embeddings().weight.data,
        layers=len(layers),
        vocab_size=target.vocab_size,
        max_len=target.max_len,
        eos_token_ids=(),
        dtype=target.dtype,
    )
    among = model.masked_embedding
    products = [model.pre_projection, model.post_projection, *([among.centroids] if among else [])]
    odd = any(linear_weights(each) is None for each in products)
    if problem := "its projections are not plain ones" if odd else lacks(model, facts):
        raise ModelError(f"{path}: this assistant cannot be served: {problem}")
    kinds = [layer.self_attn.layer_type for layer in layers]
    if missing := [kind for kind in kinds if kind not in sources]:
        raise ModelError(f"{path}: reads keys of {missing[0]}, of which {target.name} has none")
    llama = llama_of(model, facts, keyless=True)
    return AssistantWeights(
        llama=llama,
        layers=[*llama.layers],
        sources=[sources[kind] for kind in kinds],
        into=linear_of(model.pre_projection),
        out_of=linear_of(model.post_projection),
        clusters=None if among is None else _clusters(path, among),
    )


def _last_with_keys(path: Path, target: LoadedModel) -> dict[str, int]:
    """The target's last layer of each kind that has keys of its own."""
    text = config_of(target.path)[0].get_text_config()
    shared = getattr(text, "num_kv_shared_layers", None)
    if shared is None or not text.model_type.startswith("gemma4"):
        raise ModelError(f"{path}: an assistant for Gemma 4, which {target.name} is not")
    own = text.layer_types[: text.num_hidden_layers - shared]
    return {kind: layer for layer, kind in enumerate(own)}


def _clusters(path: Path, among: Any) -> Clusters:
    """What it guesses among."""
    tokens, count = among.token_ordering.long(), among.num_centroids
    if not torch.equal(tokens.sort().values, torch.arange(len(tokens), device=tokens.device)):
        raise ModelError(f"{path}: masked_embedding.token_ordering: must have each token once")
    if len(tokens) % count:
        raise ModelError(
            f"{path}/config.json: num_centroids: {count} do not share {len(tokens)} tokens"
        )
    taken = among.centroid_intermediate_top_k
    if taken not in range(1, count + 1):
        problem = f"must be 1 to num_centroids ({count}), not {taken}"
        raise ModelError(f"{path}/config.json: centroid_intermediate_top_k: {problem}")
    return Clusters(linear_of(among.centroids), tokens.view(count, -1), taken)
