"""Held-out prompts by domain, and what the target makes of them greedily.

A domain is a file of documents that no training saw; its name is the file's. Every other prompt
chooses (checkpoints, trees), the others report unless they are the same, so that no figure is
measured on what it was chosen by.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from training import corpus
from training.encode import Encoder
from training.errors import DataError
from training.written import WriteConfig, Written, continued

_NEW_TOKENS = 64
"""Length of the target's continuations."""

_MOST_PROMPT_TOKENS = 256
"""Longer beginnings are passed over."""

_BATCH = 40
"""Prompts continued at once."""

_SEED = 1
"""Decides which documents, and where they break off."""


@dataclass(frozen=True)
class Domain:
    """The target's greedy texts of one domain.

    Attributes:
        name: Of the file the prompts came from.
        choosing: Texts that choose.
        reporting: Texts that report.
    """

    name: str
    choosing: list[Written]
    reporting: list[Written]


def load(paths: Sequence[Path], target: Any, encoder: Encoder, prompts: int) -> list[Domain]:
    """Reads each file's documents and lets the target continue their beginnings.

    Args:
        paths: A file a domain, as `training.corpus` reads them.
        target: A `transformers` causal language model.
        encoder: Its tokenizer.
        prompts: Most of a domain; half of them choose, half report.

    Raises:
        DataError: A file cannot be used, gives no two prompts that differ, or has another's name.
    """
    named: dict[str, Path] = {}
    for path in paths:
        if path.stem in named:
            raise DataError(
                f"{path}: domain {path.stem}, as {named[path.stem]} is: rename one of them"
            )
        named[path.stem] = path
    return [_domain(path, target, encoder, prompts) for path in paths]


def _domain(path: Path, target: Any, encoder: Encoder, count: int) -> Domain:
    chooser = random.Random(_SEED)
    prompts = encoder.prompts(
        corpus.read([path]), chooser, count=count, most_tokens=_MOST_PROMPT_TOKENS
    )
    choosing, rest = prompts[::2], prompts[1::2]
    new = [ids not in choosing for ids in rest]  # documents may begin alike
    if not any(new):
        raise DataError(
            f"{path}: {len(prompts)} prompts of up to {_MOST_PROMPT_TOKENS} tokens: needs more "
            "that differ"
        )
    how = WriteConfig(max_new_tokens=_NEW_TOKENS)
    texts: list[Written] = []
    for first in range(0, len(prompts), _BATCH):
        part = prompts[first : first + _BATCH]
        texts += continued(target, encoder, part, how, greedy=True)
    return Domain(path.stem, texts[::2], list(compress(texts[1::2], new)))
