"""Text that the target itself writes: what a drafter or a head has to guess when it serves.

Prompts are beginnings of a corpus' documents; every other batch of them is continued greedily, the
rest are sampled. A file of it is JSON Lines, `{"ids": […], "prompt_tokens": n}`, and is written
batch by batch, each with a seed of its own, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.corpus import Document
from training.encode import Encoder, Ids
from training.errors import DataError


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """How the target writes."""

    texts: int = 8000
    """How many texts, prompts drawn from the corpus without repetition."""

    max_new_tokens: int = 128
    """Most tokens of a continuation."""

    max_prompt_tokens: int = 160
    """Longer beginnings are passed over."""

    temperature: float = 0.8
    """Of the texts that are sampled: every other batch; the rest is greedy."""

    batch: int = 64
    """Texts written at once."""

    seed: int = 0
    """Decides prompts and samples."""


@dataclass(frozen=True)
class Written:
    """One text.

    Attributes:
        ids: Prompt and continuation.
        prompt_tokens: How many of them are the prompt.
    """

    ids: Ids
    prompt_tokens: int


def write(
    out: Path,
    target: Any,
    encoder: Encoder,
    documents: Sequence[Document],
    config: WriteConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Writes the texts that `out` does not hold yet.

    Args:
        out: The file; made where it is missing.
        target: A `transformers` causal language model.
        encoder: Its tokenizer.
        documents: Whose beginnings are continued.
        config: How.
        progress: Called with texts written and wanted.

    Returns:
        How many texts the file holds.
    """
    batches = _batches(encoder, documents, config)
    total = sum(map(len, batches))
    done, first = _keep_whole_batches(out, batches)
    with out.open("a", encoding="utf-8") as file:
        for number, prompts in enumerate(batches[first:], start=first):
            done += len(prompts)
            torch.manual_seed(config.seed * 1_000_003 + number)
            for text in continued(target, encoder, prompts, config, greedy=number % 2 == 0):
                file.write(json.dumps({"ids": text.ids, "prompt_tokens": text.prompt_tokens}))
                file.write("\n")
            file.flush()
            progress(done, total)
    return total


@torch.inference_mode()
def continued(
    target: Any, encoder: Encoder, prompts: Sequence[Ids], config: WriteConfig, *, greedy: bool
) -> list[Written]:
    """Lets the target continue prompts, all at once."""
    width = max(map(len, prompts))
    padded = [[encoder.pad] * (width - len(ids)) + ids for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    sampling = {} if greedy else {"temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    out = target.generate(
        torch.tensor(padded, device=target.device),
        attention_mask=torch.tensor(mask, device=target.device),
        max_new_tokens=config.max_new_tokens,
        do_sample=not greedy,
        pad_token_id=encoder.pad,
        eos_token_id=encoder.end,
        **sampling,
    )
    texts = []
    for ids, row in zip(prompts, out[:, width:].tolist(), strict=True):
        new = row[: row.index(encoder.end) + 1] if encoder.end in row else row
        texts.append(Written([*ids, *new], len(ids)))
    return texts


def read(path: Path) -> list[Written]:
    """Reads a file of such texts.

    Raises:
        DataError: Missing, empty or of another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: byte {error.start} is {error.reason}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    texts = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
            texts.append(Written(list(map(int, record["ids"])), int(record["prompt_tokens"])))
        except (ValueError, TypeError, KeyError) as error:
            problem = 'needs "ids" and "prompt_tokens"'
            raise DataError(f"{path}, line {number}: {problem}") from error
    if not texts:
        raise DataError(f"{path}: empty: holds no text")
    return texts


def _keep_whole_batches(out: Path, batches: Sequence[Sequence[Ids]]) -> tuple[int, int]:
    """Cuts off what a crash left of a batch; returns the texts and batches that stay."""
    if not out.exists():
        return 0, 0
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = sum(line.endswith("\n") for line in lines)
    texts = count = 0
    while count < len(batches) and texts + len(batches[count]) <= whole:
        texts += len(batches[count])
        count += 1
    out.write_text("".join(lines[:texts]), encoding="utf-8")
    return texts, count


def _batches(
    encoder: Encoder, documents: Sequence[Document], config: WriteConfig
) -> list[list[Ids]]:
    """Prompts by the batch, those of like length together, batches in random order."""
    chooser = random.Random(config.seed)
    order = list(documents)
    chooser.shuffle(order)
    prompts: list[Ids] = []
    for document in order:
        ids = encoder.prompt(document, chooser)
        if 0 < len(ids) <= config.max_prompt_tokens:
            prompts.append(ids)
        if len(prompts) == config.texts:
            break
    prompts.sort(key=len)
    size = config.batch
    batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
    chooser.shuffle(batches)
    return batches
