"""Text that the target itself writes: what a drafter or a head has to guess when it serves.

Prompts are beginnings of a corpus' documents; every other batch of them is continued greedily, the
rest are sampled. A file of it is JSON Lines, `{"ids": […], "prompt_tokens": n}`, and is written
batch by batch, each with a seed of its own, so a run that was stopped goes on where it was. Its
settings stand beside it, in `<name>.run.json`.
"""

from __future__ import annotations

import copy
import json
import os
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from common.model.hf import ends_of
from training import inputs
from training.corpus import Document, read_text
from training.encode import Encoder, Ids
from training.errors import DataError, RunError, writing
from training.settings import INPUTS, Settings
from training.whole import alone


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """How the target writes."""

    texts: int = 8000
    """How many texts; no document of the corpus begins two, but two documents may begin alike."""

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


class WrittenFile:
    """A file that a target's texts are written to.

    Args:
        path: The file; its folder is made where it is missing.
        settings: What decides the texts; a file that was begun with others, or by something else,
            is refused, here and once more where writing begins.

    Raises:
        RunError: Such a file, or a folder that cannot be made.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = Settings(_settings_file(path), path, settings)
        self._check()

    def resume(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Makes the file this run's, and cuts off what a crash left of a batch.

        Args:
            sizes: Texts of each batch.

        Returns:
            The texts and batches that stay.

        Raises:
            RunError: As above, or the file holds more than all batches.
            DataError: It holds something else than texts.
        """
        self._check()
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        if not lines:
            self._settings.keep()
        whole = [line for line in lines if line.endswith(b"\n")]
        for number, line in enumerate(whole, start=1):
            _text(f"{self.path}, line {number}", line)
        totals = list(accumulate(sizes, initial=0))
        if len(whole) > totals[-1]:
            raise RunError(
                f"{self.path} holds {len(whole)} texts, but this run has {totals[-1]}: "
                "give another --out"
            )
        batches = bisect_right(totals, len(whole)) - 1
        kept = totals[batches]
        if lines[kept:]:
            os.truncate(self.path, sum(map(len, lines[:kept])))
        return kept, batches

    def append(self, texts: Sequence[Written]) -> None:
        """Adds a batch.

        Raises:
            RunError: It cannot be written.
        """
        records = [{"ids": text.ids, "prompt_tokens": text.prompt_tokens} for text in texts]
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def _check(self) -> None:
        if self.path.exists() and self.path.stat().st_size:
            if not self._settings.file.exists():
                raise RunError(
                    f"{self.path} is there, but no {self._settings.file.name} that says how it "
                    "was written: give another --out"
                )
            self._settings.check()


def write(
    out: WrittenFile,
    target: Any,
    encoder: Encoder,
    documents: Sequence[Document],
    config: WriteConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Writes the texts that `out` does not hold yet.

    Args:
        out: The file.
        target: A `transformers` causal language model.
        encoder: Its tokenizer.
        documents: Whose beginnings are continued.
        config: How.
        progress: Called with texts written and wanted.

    Returns:
        How many texts the file holds.

    Raises:
        RunError: The file is another run's, or one is at work on it; it holds more than this one
            has, or cannot be written.
        DataError: It holds something else than texts.
    """
    batches = _batches(encoder, documents, config)
    total = sum(map(len, batches))
    with alone(out.path, out.path):
        done, first = out.resume(list(map(len, batches)))
        for number, prompts in enumerate(batches[first:], start=first):
            done += len(prompts)
            torch.manual_seed(config.seed * 1_000_003 + number)
            out.append(continued(target, encoder, prompts, config, greedy=number % 2 == 0))
            progress(done, total)
    return total


@torch.inference_mode()
def continued(
    target: Any, encoder: Encoder, prompts: Sequence[Ids], config: WriteConfig, *, greedy: bool
) -> list[Written]:
    """Lets the target continue prompts, all at once, as it is served.

    Of its settings for generation only the ends of a text count: penalties and the like, which a
    verifier does not know, do not.
    """
    width = max(map(len, prompts))
    padded = [[encoder.pad] * (width - len(ids)) + ids for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    sampling = {} if greedy else {"temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    last = list(ends_of(target))  # as a verifier takes them
    writer = copy.copy(target)  # what a call leaves unset comes from the model's own settings
    writer.generation_config = GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        do_sample=not greedy,
        pad_token_id=encoder.pad,
        eos_token_id=last or None,
        **sampling,
    )
    out = writer.generate(
        torch.tensor(padded, device=target.device),
        attention_mask=torch.tensor(mask, device=target.device),
    )
    texts = []
    for ids, row in zip(prompts, out[:, width:].tolist(), strict=True):
        end = next((place for place, token in enumerate(row) if token in last), len(row))
        texts.append(Written([*ids, *row[: end + 1]], len(ids)))
    return texts


def read(path: Path, vocab_size: int | None = None) -> list[Written]:
    """Reads a file of such texts.

    Args:
        path: The file.
        vocab_size: Its ids are below that; any are taken where it is None.

    Raises:
        DataError: Missing, empty, of another form or of another vocabulary.
    """
    texts = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        texts.append(_text(f"{path}, line {number}", line, vocab_size))
    if not texts:
        raise DataError(f"{path}: empty: holds no text")
    return texts


def check_origin(path: Path, target: Path, held_out: Sequence[Path]) -> None:
    """Refuses text by another model, or that goes on from what is held out.

    That is where the settings beside the file tell who wrote it, and from which beginnings.

    Args:
        path: The file.
        target: Directory of the model that is to have written it.
        held_out: Files whose documents it is not to go on from.

    Raises:
        DataError: Another model did, or it does.
    """
    try:
        facts = json.loads(_settings_file(path).read_text(encoding="utf-8"))
        writer, known = facts["target"], facts[INPUTS]
        by, beginnings = known[writer], {known.get(corpus) for corpus in facts["corpora"]}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return
    if by != inputs.of_model(target):
        raise DataError(f"{path}: written by a model that was in {writer}, not by that in {target}")
    for file, held in inputs.contents(held_out).items():
        if held in beginnings:
            raise DataError(f"{file}: held out, but {path} goes on from it: it would be trained on")


def _settings_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.run.json")


def _text(where: str, line: str | bytes, vocab_size: int | None = None) -> Written:
    try:
        record = json.loads(line)
        ids, prompt_tokens = record["ids"], record["prompt_tokens"]
        numbers = {type(number) for number in (*ids, prompt_tokens)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f'{where}: needs "ids" and "prompt_tokens"') from error
    if not isinstance(ids, list) or numbers != {int}:
        raise DataError(f'{where}: "ids" and "prompt_tokens" must be whole numbers')
    if vocab_size is not None and ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"{where}: id {wrong}, but the target's are 0 to {vocab_size - 1}")
    return Written(ids, prompt_tokens)


def _batches(
    encoder: Encoder, documents: Sequence[Document], config: WriteConfig
) -> list[list[Ids]]:
    """Prompts by the batch, those of like length together, batches in random order."""
    chooser = random.Random(config.seed)
    prompts = encoder.prompts(
        documents, chooser, count=config.texts, most_tokens=config.max_prompt_tokens
    )
    prompts.sort(key=len)
    size = config.batch
    batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
    chooser.shuffle(batches)
    return batches
