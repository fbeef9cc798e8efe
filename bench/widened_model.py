"""A model with more weights that writes the same texts: a small pair at the size of a large one.

    python -m bench.widened_model models/demo/target /tmp/target-32 --times 32
    paceline bench --target /tmp/target-32 --draft models/demo/draft

Each feed-forward layer gets units that lead nowhere: what they compute is multiplied by zero. Every
pass reads and multiplies them, by any engine, so what drafts bring is what they would bring a model
of that size of which they were right as often.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from bench.arguments import at_least, ending_well
from common import json_object
from common.errors import ModelError
from common.model import tensor_file

_INTO, _OUT_OF = (".mlp.gate_proj.weight", ".mlp.up_proj.weight"), ".mlp.down_proj.weight"
_SIZE, _LAYERS = "intermediate_size", "num_hidden_layers"


def write(source: Path, directory: Path, times: int) -> None:
    """Write a model whose feed-forward layers are wider.

    Args:
        source: A model of Llama's family.
        directory: Where to.
        times: How often as wide as they were.

    Raises:
        ModelError: Its layers have other names than those of that family, or biases; or the model
            would be written over itself.
    """
    if directory.exists() and directory.samefile(source):
        raise ModelError(f"{directory}: must be another directory than that of the model")
    config = json_object.read(source / "config.json")
    if not {_SIZE, _LAYERS} <= config.keys() or config.get("mlp_bias"):
        raise ModelError(f"{source}: must have an {_SIZE} and no mlp_bias, as Llama's family has")
    weights = dict(_widened(source, times))
    for end in (*_INTO, _OUT_OF):
        if sum(name.endswith(end) for name in weights) != config[_LAYERS]:
            problem = f"must have safetensors weights *{end} in each layer, as Llama's family has"
            raise ModelError(f"{source}: {problem}")
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith(("model", "config.json")):
            shutil.copyfile(file, directory / file.name)
    config[_SIZE] *= times
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensor_file.save(weights, directory / "model.safetensors", {"format": "pt"})


def _widened(source: Path, times: int) -> Iterator[tuple[str, Tensor]]:
    random = torch.Generator().manual_seed(0)
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                yield name, _wide(name, file.get_tensor(name), times, random)


def _wide(name: str, weight: Tensor, times: int, random: torch.Generator) -> Tensor:
    """A weight, `[out, in]`, with more outputs or more inputs that count for nothing."""
    if name.endswith(_INTO):
        shape = (weight.shape[0] * (times - 1), weight.shape[1])
        more = torch.randn(shape, generator=random) * weight.float().std()
        return torch.cat((weight, more.to(weight.dtype)))
    if name.endswith(_OUT_OF):
        zeros = weight.new_zeros(weight.shape[0], weight.shape[1] * (times - 1))
        return torch.cat((weight, zeros), dim=1)
    return weight


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.widened_model")
    parser.add_argument("source", type=Path, help="a model of Llama's family")
    parser.add_argument("directory", type=Path, help="where to")
    parser.add_argument(
        "--times", type=at_least(1), default=32, help="how often as wide (default: %(default)s)"
    )
    arguments = parser.parse_args()
    with ending_well():
        write(arguments.source, arguments.directory, arguments.times)
