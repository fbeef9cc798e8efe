"""Whole runs, from files to files: what the commands of `paceline train` that make models do.

Those that make heads have `head_runs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from training import blocks, corpus, held_out, inputs, output, written
from training import distill as distillation
from training import pretrain as pretraining
from training.blocks import Blocks, Mixture
from training.encode import Encoder
from training.errors import DataError, writing
from training.folder import RunFolder, State
from training.loop import LoopConfig, Progress, make_accelerator, train
from training.models import load_draft, load_model, save_model
from training.settings import INPUTS
from training.written import WriteConfig, WrittenFile

_VALIDATION_SHARE = 0.01
_MOST_VALIDATION_BLOCKS = 100


@dataclass(frozen=True, kw_only=True)
class How:
    """What decides the numbers of a run, beside its loop."""

    seed: int = 0
    """Decides weights, order and samples."""

    block_tokens: int = 256
    """Tokens of a block."""

    device: str = "cpu"
    """Name of a torch device, cpu or cuda."""

    half: bool = True
    """Whether products run in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Files of a run that has a target.

    Raises:
        DataError: A held-out file is trained on.
    """

    corpora: Sequence[Path]
    """Training files, as `training.corpus` reads them."""

    written: Sequence[Path] = ()
    """Texts by the target, of `training.written`."""

    share: float = 0.75
    """Part of all blocks that the target wrote."""

    held_out: Sequence[Path] = ()
    """Files of documents that no training saw, one a domain."""

    def __post_init__(self) -> None:
        trained = set(inputs.contents(self.corpora).values())
        for path, held in inputs.contents(self.held_out).items():
            if held in trained:
                raise DataError(f"{path}: held out, but --corpus has it: it would be trained on")

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [*self.corpora, *self.written, *self.held_out]


def pretrain(
    *,
    corpora: Sequence[Path],
    out: Path,
    shape: pretraining.ModelShape,
    loop: LoopConfig,
    how: How,
    progress: Progress,
) -> State:
    """Trains tokenizer and model; the model goes to `out/model`. Returns how the run went."""
    what = {"kind": "pretrain", "corpora": corpora, INPUTS: inputs.contents(corpora)}
    folder = RunFolder(out, {**what, **facts(shape, loop, how)})
    directory = out / "model"
    with folder.alone():
        # A tokenizer of a run that never began may be of other corpora.
        if not (folder.begun and (directory / "tokenizer.json").is_file()):
            tokenizer = pretraining.train_tokenizer(corpus.read(corpora), shape)
            with writing(directory):
                tokenizer.save_pretrained(directory)
        encoder = Encoder(directory)
        everything = blocks.of_corpora(corpora, encoder, how.block_tokens, how.seed)
        aside = min(_MOST_VALIDATION_BLOCKS, math.ceil(len(everything) * _VALIDATION_SHARE))
        if aside >= len(everything):
            raise DataError(f"{corpora[0]}: one block in all: nothing would be left to train on")
        training, validation = everything.split(aside)
        accelerator = make_accelerator(how.device, half=how.half)
        model = pretraining.make_model(shape, encoder.tokenizer, seed=how.seed)
        task = pretraining.Pretraining(model, validation, accelerator)
        train(task, training, folder, accelerator, loop, progress)
        save_model(model, encoder.tokenizer, directory)
    return folder.state


def write(
    *,
    target: Path,
    corpora: Sequence[Path],
    out: Path,
    config: WriteConfig,
    device: str,
    progress: Callable[[int, int], None],
) -> int:
    """Lets the target write the file `out`. Returns how many texts it holds."""
    what = {"kind": "write", "target": target, "corpora": corpora, "device": device}
    what[INPUTS] = inputs.contents(corpora, [target])
    file = WrittenFile(out, {**what, **facts(config)})
    documents = corpus.read(corpora)
    model = load_model(target).to(device)
    return written.write(file, model, Encoder(target, model), documents, config, progress)


def distill(
    *,
    target: Path,
    draft: Path,
    fresh: bool,
    labels: distillation.Labels,
    data: Data,
    prompts: int,
    out: Path,
    loop: LoopConfig,
    how: How,
    progress: Progress,
) -> State:
    """Trains a drafter; it goes to `out/model`. Returns how the run went."""
    what = {"target": target, "draft": draft, "fresh": fresh, "labels": labels, "prompts": prompts}
    what |= {"kind": "distill", INPUTS: inputs.contents(data.files, [target, draft])}
    folder = RunFolder(out, {**what, **facts(data, loop, how)})
    with folder.alone():
        model = load_target(target, how)
        encoder = Encoder(target, model)
        learner = load_draft(draft, model, float32=True)
        output.check(learner, draft)
        if fresh:
            torch.manual_seed(how.seed)
            learner = type(learner)(learner.config)
        accelerator = make_accelerator(how.device, half=how.half)
        batches = mixture(data, target, model, encoder, how)
        domains = held_out.load(data.held_out, model, encoder, prompts)
        task = distillation.Distillation(learner, model, domains, accelerator, labels)
        train(task, batches, folder, accelerator, loop, progress)
        save_model(learner, encoder.tokenizer, out / "model")
    return folder.state


def load_target(directory: Path, how: How) -> Any:
    """A target in the format that it is read in.

    Raises:
        ModelError: It cannot be loaded, or its logits are made in a way not known here.
    """
    model = load_model(directory, float32=not how.half).to(how.device)
    output.check(model, directory)
    return model


def mixture(data: Data, target: Path, model: Any, encoder: Encoder, how: How) -> Blocks | Mixture:
    """What a run trains on.

    Raises:
        DataError: A file that cannot be used, or that another model wrote.
    """
    corpora = blocks.of_corpora(data.corpora, encoder, how.block_tokens, how.seed)
    if not data.written:
        return corpora
    for path in data.written:
        written.check_origin(path, target, data.held_out)
    vocab_size = model.config.get_text_config().vocab_size
    texts = blocks.of_written(data.written, vocab_size, how.block_tokens, how.seed)
    return Mixture(corpora, texts, share=data.share)


def facts(*settings: Any) -> dict[str, Any]:
    """Settings of several kinds as one flat object, for the run's folder."""
    return {name: value for each in settings for name, value in asdict(each).items()}
