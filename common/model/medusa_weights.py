"""Weights of Medusa heads, and tensors as files of any layout hold them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from common.errors import ModelError
from common.model import tensor_file

Tree = tuple[tuple[int, ...], ...]

FACTS_FILE = "medusa.json"
"""By which our own layout is told."""


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """Weights of K heads of L blocks each, over hidden size d and vocabulary V."""

    block: Tensor
    """W of every block, `[K, L, d, d]`."""
    bias: Tensor
    """b of every block, `[K, L, d]`."""
    lm: Tensor | None
    """Output matrices, `[K, V, d]`; None where the base model's serves all heads."""
    token: Tensor | None = None
    """U of every first block, `[K, d, d]`; None where heads see the state alone."""
    tree: Tree | None = None
    """Sparse static tree chosen for these heads: paths of ranks."""

    @property
    def num_heads(self) -> int:
        """K."""
        return self.block.shape[0]

    @property
    def num_layers(self) -> int:
        """L."""
        return self.block.shape[1]


def read(file: Path, prefix: str | None) -> dict[str, Tensor]:
    """Reads the tensors of a file by key; only those under `prefix`, where one is given.

    Raises:
        ModelError: It cannot be read, or holds something else.
    """
    try:
        if file.suffix == ".safetensors":
            with tensor_file.opened(file) as opened:
                keys = [key for key in opened.keys() if key.startswith(prefix or "")]  # noqa: SIM118
                return {key: opened.get_tensor(key) for key in keys}
        _check_form(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{file}: refused: holds more than tensors") from error
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if not isinstance(held, dict):
        raise ModelError(f"{file}: must hold tensors by key")
    for key, value in held.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ModelError(f"{file}: {key}: not a tensor")
    return {key: value for key, value in held.items() if key.startswith(prefix or "")}


def check(file: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that the keys are exactly these, with these shapes.

    Args:
        file: Where they came from, for the message.
        tensors: By key.
        shapes: By key.

    Raises:
        ModelError: They are not; names the key.
    """
    for key, shape in shapes.items():
        if key not in tensors:
            raise ModelError(f"{file}: {key}: missing")
        found = tuple(tensors[key].shape)
        if found != shape:
            raise ModelError(f"{file}: {key}: shape {found}, but this model needs {shape}")
        if not tensors[key].is_floating_point():
            raise ModelError(f"{file}: {key}: {tensors[key].dtype}, but must be floating point")
    for key in sorted(tensors.keys() - shapes.keys()):
        raise ModelError(f"{file}: {key}: does not belong to the other keys")


def _check_form(file: Path) -> None:
    """Refuses what PyTorch never wrote: it takes such for pickles of more than tensors."""
    with file.open("rb") as stream:
        start = stream.read(2)
    if not start:
        raise ModelError(f"{file}: empty")
    if start != b"PK" and not start.startswith(b"\x80"):  # a zip file, and a pickle
        raise ModelError(f"{file}: not a PyTorch file (a Git LFS pointer?)")
