"""Files of `safetensors` as other files are: open to whoever may read those, and told why not.

The library itself writes them for their owner alone, and says "no such file" of all that it cannot
open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_POINTER = b"version https://git-lfs"
"""What a file begins with that Git has not fetched."""


def opened(file: Path) -> Any:
    """Opens one, see `safetensors.safe_open`.

    Raises:
        OSError: It cannot be opened; says why.
        SafetensorError: It holds something else; names it and says what.
    """
    with file.open("rb") as stream:
        is_pointer = stream.read(len(_POINTER)) == _POINTER
    if is_pointer:
        raise SafetensorError(f"{file.name} is a pointer of Git LFS: `git lfs pull` fetches it")
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise SafetensorError(f"{file.name}: {error}") from error


def save(
    tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes one.

    Args:
        tensors: By name; no two share memory.
        file: Replaced where it is there.
        metadata: Of its header; models of `transformers` say their format there.
    """
    save_file(dict(tensors), file, None if metadata is None else dict(metadata))
    share(file)


def share(file: Path) -> None:
    """Lets a file be read and written by all that a new one may be."""
    mask = os.umask(0o077)  # there is no way to ask without setting it
    os.umask(mask)
    file.chmod(0o666 & ~mask)
