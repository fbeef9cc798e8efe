"""What heads have in common that `transformers` loads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.errors import ModelError
from common.model.loader import LoadedModel


def check_sizes(
    path: Path, target: LoadedModel, sizes: Iterable[tuple[str, int, int]], otherwise: str
) -> None:
    """Refuses a head of another model.

    Args:
        path: Its directory.
        target: What it is to draft for.
        sizes: Its settings, what they say, and what the target has.
        otherwise: What it means that they differ.

    Raises:
        ModelError: Some do; names one.
    """
    for name, size, there in sizes:
        if size != there:
            problem = f"{name}: {size}, but {target.name} has {there}"
            raise ModelError(f"{path}/config.json: {problem}: {otherwise}")
