"""Published files of Medusa heads.

Three layouts, each told by its keys (`h` counts heads, `l` a head's blocks, `L` is how many):

    medusa_lm_head.pt            Medusa-1, v0.1: `{h}.{l}.linear.weight` and `.bias`, and
                                 `{h}.{L}.weight`, the head's own output matrix
    a whole model                Medusa-2: the same keys after `medusa_head.`, beside the model's
    medusa_lm_head.safetensors   no `{h}.{L}.weight`: the base model's output matrix serves all

The numbers of heads and blocks are read off the keys: published `config.json` files are wrong
about them. Every key must be there, none may be left over and every shape must fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from common.errors import ModelError
from common.model.medusa.weights import FACTS_FILE, HeadWeights
from common.model.tensors_by_key import check, read

_PUBLISHED = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_KEY = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")
_PREFIX = "medusa_head."


def load(path: Path, lm_head: Tensor) -> HeadWeights:
    """Reads heads in any of the layouts above.

    Args:
        path: A directory, or the file that holds them.
        lm_head: The base model's output matrix. # [V, d]

    Raises:
        ModelError: Missing, corrupt or made for another model; names file and key.
    """
    files = _files(path)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read(file, _PREFIX if _whole_model(file) else None)
    if not tensors:
        raise ModelError(f"{path}: no Medusa heads there: no key starts with {_PREFIX}")
    return _stacked(files[0], tensors, lm_head)


def _files(path: Path) -> list[Path]:
    """The file of heads at `path`, or the files of the model that holds them."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or directory")
    for name in _PUBLISHED:
        if (path / name).is_file():
            return [path / name]
    for pattern in ("model*.safetensors", "pytorch_model*.bin"):
        if found := sorted(path.glob(pattern)):
            return found
    raise ModelError(f"{path}: holds no {FACTS_FILE}, no {' or '.join(_PUBLISHED)}, and no model")


def _whole_model(file: Path) -> bool:
    return file.name.startswith(("model", "pytorch_model"))


def _stacked(file: Path, tensors: dict[str, Tensor], lm_head: Tensor) -> HeadWeights:
    plain = {key.removeprefix(_PREFIX): value for key, value in tensors.items()}
    heads, layers, own = _counts(file, plain)
    vocab, hidden = lm_head.shape
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(layers):
            shapes[f"{head}.{layer}.linear.weight"] = (hidden, hidden)
            shapes[f"{head}.{layer}.linear.bias"] = (hidden,)
        if own:
            shapes[f"{head}.{layers}.weight"] = (vocab, hidden)
    check(file, plain, shapes)

    def stacked(name: str) -> Tensor:
        rows = [plain[f"{h}.{i}.linear.{name}"] for h in range(heads) for i in range(layers)]
        return torch.stack(rows).view(heads, layers, *rows[0].shape)

    lm = torch.stack([plain[f"{h}.{layers}.weight"] for h in range(heads)]) if own else None
    return HeadWeights(block=stacked("weight"), bias=stacked("bias"), lm=lm)


def _counts(file: Path, keys: Iterable[str]) -> tuple[int, int, bool]:
    """Heads, blocks of a head, and whether heads have output matrices of their own."""
    parts = []
    for key in keys:
        match = _KEY.fullmatch(key)
        if match is None:
            raise ModelError(f"{file}: {key}: no such key in any layout of Medusa heads")
        parts.append((int(match[1]), int(match[2]), match[3]))
    heads = 1 + max(head for head, _, _ in parts)
    layers = 1 + max((layer for _, layer, name in parts if name != "weight"), default=0)
    return heads, layers, any(name == "weight" for _, _, name in parts)
