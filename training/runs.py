"""Whole runs, from files to files: what each command of `paceline train` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common.model import medusa_checkpoint
from training import blocks, corpus, held_out, written
from training import distill as distillation
from training import medusa as medusa_training
from training import pretrain as pretraining
from training.blocks import Blocks, Mixture
from training.encode import Encoder
from training.errors import DataError, writing
from training.folder import RunFolder
from training.heads import Heads
from training.held_out import Domain, HeldOutConfig
from training.loop import LoopConfig, Progress, make_accelerator, train
from training.models import load_draft, load_model, save_model
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
    """Files of a run that has a target."""

    corpora: Sequence[Path]
    """Training files, as `training.corpus` reads them."""

    written: Sequence[Path] = ()
    """Texts by the target, of `training.written`."""

    share: float = 0.75
    """Part of each batch that the target wrote."""

    held_out: Sequence[Path] = ()
    """Files of documents that no training saw, one a domain."""


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Shape of Medusa heads."""

    num_heads: int = 4
    """Heads."""

    num_layers: int = 1
    """Blocks of a head."""

    own_lm: bool = True
    """Whether each has an output matrix of its own."""

    sees_token: bool = True
    """Whether each sees the token chosen from the state."""


def pretrain(
    *,
    corpora: Sequence[Path],
    out: Path,
    shape: pretraining.ModelShape,
    loop: LoopConfig,
    how: How,
    progress: Progress,
) -> dict[str, float]:
    """Trains tokenizer and model; the model goes to `out/model`. Returns the best figures."""
    folder = RunFolder(out, {"kind": "pretrain", "corpora": corpora, **_facts(shape, loop, how)})
    directory = out / "model"
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
    return folder.state.best


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
    file = WrittenFile(out, {**what, **_facts(config)})
    documents = corpus.read(corpora)
    model = load_model(target).to(device)
    return written.write(file, model, Encoder(target), documents, config, progress)


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
) -> dict[str, float]:
    """Trains a drafter; it goes to `out/model`. Returns the best figures."""
    what = {"target": target, "draft": draft, "fresh": fresh, "labels": labels, "prompts": prompts}
    folder = RunFolder(out, {"kind": "distill", **what, **_facts(data, loop, how)})
    model, encoder = _target(target, how), Encoder(target)
    learner = load_draft(draft, model, float32=True)
    if fresh:
        torch.manual_seed(how.seed)
        learner = type(learner)(learner.config)
    accelerator = make_accelerator(how.device, half=how.half)
    domains = held_out.load(data.held_out, model, encoder, HeldOutConfig(prompts=prompts))
    task = distillation.Distillation(learner, model, domains, accelerator, labels)
    train(task, _mixture(data, encoder, how), folder, accelerator, loop, progress)
    save_model(learner, encoder.tokenizer, out / "model")
    return folder.state.best


def medusa(
    *,
    target: Path,
    shape: HeadShape,
    data: Data,
    prompts: int,
    out: Path,
    frozen: LoopConfig,
    joint: LoopConfig | None,
    how: How,
    progress: Progress,
) -> dict[str, float]:
    """Trains heads; they go to `out/heads`, a jointly trained model to `out/model`.

    Returns:
        The best figures of the last stage.
    """
    what = {"kind": "medusa", "target": target, "prompts": prompts}
    folder = RunFolder(out / "frozen", {**what, **_facts(shape, data, frozen, how)})
    model, encoder = _target(target, how), Encoder(target)
    accelerator = make_accelerator(how.device, half=how.half)
    mixture = _mixture(data, encoder, how)

    def domains(of: Any) -> list[Domain]:
        return held_out.load(data.held_out, of, encoder, HeldOutConfig(prompts=prompts))

    lm_head = model.get_output_embeddings().weight
    heads = Heads(
        lm_head,
        num_heads=shape.num_heads,
        num_layers=shape.num_layers,
        own_lm=shape.own_lm,
        sees_token=shape.sees_token,
    )
    first = medusa_training.FrozenBase(model, heads, domains(model), accelerator)
    train(first, mixture, folder, accelerator, frozen, progress)
    if joint is not None:
        folder = RunFolder(out / "joint", {**what, **_facts(shape, data, joint, how)})
        second = medusa_training.Joint(model, heads, domains, accelerator)
        train(second, mixture, folder, accelerator, joint, progress)
        save_model(second.base, encoder.tokenizer, out / "model")
        lm_head = second.base.get_output_embeddings().weight
    weights = heads.weights()
    with writing(out / "heads"):
        medusa_checkpoint.save(out / "heads", weights, lm_head=lm_head)
    return folder.state.best


def joint_loop(frozen: LoopConfig, steps: int, learning_rate: float) -> LoopConfig | None:
    """Settings of the second stage; None for no steps."""
    if not steps:
        return None
    return replace(frozen, steps=steps, learning_rate=learning_rate)


def _target(directory: Path, how: How) -> Any:
    return load_model(directory, float32=not how.half).to(how.device)


def _mixture(data: Data, encoder: Encoder, how: How) -> Blocks | Mixture:
    corpora = blocks.of_corpora(data.corpora, encoder, how.block_tokens, how.seed)
    if not data.written:
        return corpora
    texts = blocks.of_written(data.written, how.block_tokens, how.seed)
    return Mixture(corpora, texts, share=data.share)


def _facts(*settings: Any) -> dict[str, Any]:
    """Settings of several kinds as one flat object, for the run's folder."""
    return {name: value for each in settings for name, value in asdict(each).items()}
