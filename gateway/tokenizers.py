"""Which of the tokenizers that are loaded is a model's.

Models that share a tokenizer.json need not share a chat template, nor the tokens that are added to
it: a base model has none, and two that were tuned for different ends have their own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.tokenizer import Tokenizer, lacking

log = logging.getLogger(__name__)

Named = dict[str, Tokenizer]
"""Tokenizers of one fingerprint, by the names of their directories."""

Tokenizers = Mapping[str, Named]
"""All that are loaded, by fingerprint, former ones included."""


def load(directories: Sequence[Path]) -> Tokenizers:
    """Loads the tokenizers of model directories.

    Raises:
        ModelError: A directory is missing or its tokenizer is corrupt.
    """
    loaded: dict[str, Named] = {}
    for directory in directories:
        tokenizer = Tokenizer.load(directory)
        if tokenizer is None:
            said = {"directory": str(directory), "reason": lacking(directory)}
            log.warning("model directory has no tokenizer", extra=said)
            continue
        named = loaded.setdefault(tokenizer.fingerprint, {})
        # Workers of an earlier 0.x report that one; gateways go first in an upgrade.
        loaded[tokenizer.former_fingerprint] = named
        if not tokenizer.same_as(named.pop(directory.name, tokenizer)):
            said = {"directory": str(directory)}
            log.warning(
                "a directory of the same name has another chat template or other tokens", extra=said
            )
        alike = (each for each in named.values() if each.same_as(tokenizer))
        named[directory.name] = next(alike, tokenizer)  # one of them takes a hundred megabytes
    return loaded


def chosen(named: Named, model: str) -> Tokenizer | None:
    """Returns that of the directory named like a model, else of the last directory, if any."""
    return named.get(model, next(reversed(named.values()), None))


def undecided(named: Named, model: str) -> bool:
    """Whether no directory is named like a model, and it matters which one is chosen."""
    first, *others = named.values()
    return model not in named and not all(first.same_as(other) for other in others)
