"""Directories of assistants: which are, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from common import json_object
from common.model.assistant.weights import AssistantWeights

if TYPE_CHECKING:
    from common.model.loader import LoadedModel

KINDS = ("gemma4_assistant", "gemma4_unified_assistant")
"""What configurations call them."""


def is_one(path: Path) -> bool:
    """Whether a directory holds an assistant, rather than another head.

    Raises:
        ModelError: Its configuration cannot be read.
    """
    return json_object.read(path / "config.json").get("model_type") in KINDS


def load(path: Path, target: LoadedModel) -> AssistantWeights:
    """Reads one, to where its target is, in its type.

    Raises:
        ModelError: Missing, corrupt, unsupported or made for another target; says which file or
            what.
    """
    from common.model.hf import assistant  # takes seconds: only where it is needed

    return assistant.load(path, target)
