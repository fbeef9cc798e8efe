"""Files that hold a model's weights: which they are, and what is in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from common.errors import ModelError
from common.model import tensor_file


class Stored(NamedTuple):
    """What a file's header says of a tensor."""

    dtype: str
    """As `safetensors` calls it: F32, BF16, F8_E4M3, …"""
    shape: tuple[int, ...]
    """Its size in each dimension."""


_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"

_OTHERS = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".safetensors"}
"""Of what else weights are in."""


def names(directory: Path) -> list[str]:
    """Names of the files that hold a model's weights, as its index has them where there is one.

    They may lie in folders below, or elsewhere: that is for the caller to allow.

    Raises:
        ValueError: The index is none.
    """
    index = directory / _INDEX
    if (directory / _ONE).is_file() or not index.is_file():
        return [_ONE]
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({os.fspath(name) for name in named})  # a number is none
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{_INDEX} has no weight_map from tensors to files") from error


def opened(directory: Path) -> dict[str, Any]:
    """By tensor, the open file that holds it.

    Raises:
        Exception: They cannot be read, or lie elsewhere; may be anything.
    """
    files: dict[str, Any] = {}
    for name in names(directory):  # of a tensor in two, the last counts
        if Path(name).name != name:  # no way out of the directory
            raise ValueError(f"file {name}")
        file = tensor_file.opened(directory / name)
        files |= dict.fromkeys(file.keys(), file)
    return files


def are_there(directory: Path) -> bool:
    """Whether there are files where weights are looked for."""
    return any((directory / name).is_file() for name in (_ONE, _INDEX))


def check_access(directory: Path) -> int | None:
    """Refuses weights that are there, but cannot be opened, or are something else.

    Of the former `transformers` says that they are not there, and of the latter not which file.

    Returns:
        How many tensors there are; None where something else is wrong with the files, which is for
        those to say who read them.

    Raises:
        ModelError: There are such; names the file and says why.
    """
    try:
        return len(opened(directory))
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{directory}: weights cannot be loaded: {error}") from error
    except Exception:
        return None


def check_form(directory: Path) -> None:
    """Refuses a model whose weights are not where they are looked for.

    Raises:
        ModelError: So it is; says what there is instead.
    """
    if are_there(directory):
        return
    others = sorted(file.name for file in directory.iterdir() if file.suffix in _OTHERS)
    found = f"; what {others[0]} holds is not read" if others else ""
    raise ModelError(
        f"{directory}: weights cannot be loaded: neither {_ONE} nor {_INDEX} is there{found}"
    )


def stored(directory: Path) -> dict[str, Stored]:
    """What there is in a model's files, by name, wherever they lie.

    Raises:
        ModelError: They cannot be read; says why.
    """
    found: dict[str, Stored] = {}
    try:
        for part in names(directory):
            file = tensor_file.opened(directory / part)
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                found[name] = Stored(tensor.get_dtype(), tuple(tensor.get_shape()))
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{directory}: weights cannot be loaded: {error}") from error
    return found
