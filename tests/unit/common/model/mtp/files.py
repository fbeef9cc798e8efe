"""Tiny models that bring a layer for multi-token prediction along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests import tiny_models

LAYERS = 2

LISTS = "layer_types", "mlp_layer_types"
_MELLUM = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
}
"""What files of Mellum call what is beside the layer."""


def write(kind: str, directory: Path, **changes: Any) -> Path:
    """A model of a kind: of one layer more, which becomes the one that it brings along."""
    more: dict[str, Any] = {"num_hidden_layers": LAYERS + 1}
    settings = {**(tiny_models.ARCHITECTURES | tiny_models.MORE)[kind], **changes}
    for name in LISTS:
        if name in settings:
            more[name] = [*settings[name], settings[name][-1]]
    tiny_models.stirred(kind, directory, **changes, **more)
    file, config = directory / "model.safetensors", directory / "config.json"
    tensors = load_file(file)
    hidden = settings["hidden_size"]
    behind = f"model.layers.{LAYERS}."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{behind}{name}.weight"] = 1 + 0.3 * torch.randn(hidden)
    tensors[f"{behind}eh_proj.weight"] = torch.randn(hidden, 2 * hidden) / hidden**0.5
    tensors[f"{behind}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    output = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    tensors[f"{behind}shared_head.head.weight"] = output.clone()
    if kind == "mellum":
        tensors = {_in_mellum(name, behind): tensor for name, tensor in tensors.items()}
    save_file(tensors, file, {"format": "pt"})
    said = json.loads(config.read_text())
    said |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    for name in LISTS:
        if isinstance(said.get(name), list):
            said[name] = said[name][:LAYERS]
    config.write_text(json.dumps(said))
    return directory


def _in_mellum(name: str, behind: str) -> str:
    if not name.startswith(behind):
        return name
    inner = name.removeprefix(behind)
    beside = inner.removesuffix(".weight")
    return f"mtp.{_MELLUM[beside]}.weight" if beside in _MELLUM else f"mtp.layers.0.{inner}"
