"""Tensors by key, as files of any layout hold them: read, and checked against what is wanted."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from common.errors import ModelError, reason
from common.model import tensor_file


def read(file: Path, prefix: str | None) -> dict[str, Tensor]:
    """Reads the tensors of a file by key; only those under `prefix`, where one is given.

    Raises:
        ModelError: It cannot be read, or holds something else.
    """
    try:
        if file.suffix == ".safetensors":
            with tensor_file.opened(file) as opened:
                keys = [key for key in opened.keys() if key.startswith(prefix or "")]  # noqa: SIM118
                return {key: opened.get_tensor(key).clone() for key in keys}  # pages may change
        _check_form(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{file}: refused: holds more than tensors") from error
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, struct.error) as error:
        raise ModelError(f"{file}: cannot be read: {reason(error)}") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"  # what is damaged may say nothing by itself
        raise ModelError(f"{file}: cannot be read: damaged: {said}") from error
    if not isinstance(held, dict):
        raise ModelError(f"{file}: must hold tensors by key")
    for key, value in held.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ModelError(f"{file}: {key}: not a tensor")
    wanted = {key: value for key, value in held.items() if key.startswith(prefix or "")}
    for key, value in wanted.items():
        if not _plain(value):
            raise ModelError(f"{file}: {key}: not a plain tensor")
    return wanted


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


def _plain(tensor: Tensor) -> bool:
    """Whether it holds its numbers one by one, as all of `safetensors` do."""
    odd = tensor.is_nested or tensor.is_quantized or tensor.is_meta
    return tensor.layout is torch.strided and not odd


def _check_form(file: Path) -> None:
    """Refuses what PyTorch never wrote: it takes such for pickles of more than tensors."""
    with file.open("rb") as stream:
        start = stream.read(2)
    if not start:
        raise ModelError(f"{file}: empty")
    if start != b"PK" and not start.startswith(b"\x80"):  # a zip file, and a pickle
        raise ModelError(f"{file}: not a PyTorch file (a Git LFS pointer?)")
