"""Models that bring layers for multi-token prediction along: which do, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from common import json_object
from common.model.mtp.layer import MtpLayer

if TYPE_CHECKING:
    from common.model.loader import LoadedModel

SETTING = "num_nextn_predict_layers"
"""What configurations call how many there are."""


def is_one(path: Path) -> bool:
    """Whether a directory holds a model with such layers, rather than a head.

    Raises:
        ModelError: Its configuration cannot be read.
    """
    config = json_object.read(path / "config.json")
    text = config.get("text_config")
    counts = [part.get(SETTING) for part in (config, text) if isinstance(part, dict)]
    return any(isinstance(count, int) and count > 0 for count in counts)


def load(path: Path, target: LoadedModel) -> MtpLayer:
    """Reads the first of them, to where its model is, in its type.

    Raises:
        ModelError: Missing, corrupt, unsupported or another model's; says which file or what.
    """
    from common.model.hf import mtp  # takes seconds: only where it is needed

    return mtp.load(path, target)
