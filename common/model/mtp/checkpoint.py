"""Models that bring layers for multi-token prediction along: which do, and what they hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from common import json_object
from common.model import weight_files
from common.model.mtp.layer import MtpLayer

if TYPE_CHECKING:
    from common.model.loader import LoadedModel

SETTING = "num_nextn_predict_layers"
"""What configurations call how many there are."""


def is_one(path: Path) -> bool:
    """Whether a directory holds a model with such layers, rather than a head.

    Raises:
        ModelError: Its configuration or its files cannot be read.
    """
    config = json_object.read(path / "config.json")
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    further = further_layers(text.get("num_hidden_layers"), text.get(SETTING))
    if not further or not weight_files.are_there(path):
        return False
    return any(is_of(further, name) for name in weight_files.stored(path))


def is_usable(path: Path) -> bool:
    """Whether such layers are there that `load` reads: not where they are held in fewer bits.

    Raises:
        ModelError: As `is_one`.
    """
    return is_one(path) and "quantization_config" not in json_object.read(path / "config.json")


def further_layers(layers: object, further: object) -> range:
    """Numbers of such layers, behind the others.

    Args:
        layers: How many others there are, as configurations of the part that reads text say.
        further: The same of `SETTING`; there may be none.
    """
    if not isinstance(layers, int) or not isinstance(further, int):
        return range(0)
    return range(layers, layers + further)


def is_of(further: range, name: str) -> bool:
    """Whether a tensor is of one of such layers."""
    layers = re.findall(r"(?:^|\bmodel\.|\blanguage_model\.)layers\.(\d+)\.", name)  # no pictures'
    return "mtp" in name.split(".") or any(int(layer) in further for layer in layers)


def load(path: Path, target: LoadedModel) -> MtpLayer:
    """Reads the first of them, to where its model is.

    Raises:
        ModelError: Corrupt, unsupported or of other sizes; says what.
    """
    from common.model.hf import mtp  # takes seconds: only where it is needed

    return mtp.load(path, target)
