"""Whole runs that end in heads over a target, from files to files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import InvalidArgument
from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.medusa import checkpoint as medusa_checkpoint
from common.model.medusa.weights import HeadWeights
from training import eagle as eagle_training
from training import eagle_start, held_out, inputs, runs, written
from training import medusa as medusa_training
from training.blocks import Blocks, Mixture
from training.eagle_net import EagleNet
from training.eagle_start import EagleShape
from training.encode import Encoder
from training.errors import writing
from training.folder import RunFolder, State
from training.heads import Heads
from training.held_out import Domain
from training.loop import LoopConfig, Progress, make_accelerator, train
from training.models import save_model
from training.runs import Data, How
from training.settings import INPUTS


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
) -> State:
    """Trains heads; they go to `out/heads`, a jointly trained model to `out/model`.

    Returns:
        How the last stage went.

    Raises:
        InvalidArgument: More heads than a block has tokens for.
    """
    if shape.num_heads + 1 >= how.block_tokens:
        problem = f"must be {how.block_tokens - 2} or fewer: a block has {how.block_tokens} tokens"
        raise InvalidArgument("--num-heads", f"{problem}, and the last head needs one to guess")
    what = {"kind": "medusa", "target": target, "prompts": prompts}
    what[INPUTS] = inputs.contents(data.files, [target])
    folder = RunFolder(out / "frozen", {**what, **runs.facts(shape, data, frozen, how)})
    with folder.alone():
        model = runs.load_target(target, how)
        encoder = Encoder(target, model)
        accelerator = make_accelerator(how.device, half=how.half)
        batches = runs.mixture(data, target, model, encoder, how)

        def domains(of: Any) -> list[Domain]:
            return held_out.load(data.held_out, of, encoder, prompts)

        lm_head = model.get_output_embeddings().weight
        heads = Heads(lm_head, **asdict(shape))
        first = medusa_training.FrozenBase(model, heads, domains(model), accelerator)
        train(first, batches, folder, accelerator, frozen, progress)
        if joint is not None:
            folder = RunFolder(out / "joint", {**what, **runs.facts(shape, data, joint, how)})
            second = medusa_training.Joint(model, heads, domains, accelerator)
            train(second, batches, folder, accelerator, joint, progress)
            save_model(second.base, encoder.tokenizer, out / "model")
            lm_head = second.base.get_output_embeddings().weight
        _save_heads(out / "heads", heads.weights(), lm_head)
    return folder.state


def joint_loop(frozen: LoopConfig, steps: int, learning_rate: float) -> LoopConfig | None:
    """Settings of the second stage; None for no steps."""
    if not steps:
        return None
    return replace(frozen, steps=steps, learning_rate=learning_rate)


def eagle(
    *,
    target: Path,
    shape: EagleShape,
    depths: int,
    data: Data,
    prompts: int,
    out: Path,
    loop: LoopConfig,
    how: How,
    progress: Progress,
    say: Callable[[str], None],
) -> State:
    """Trains an EAGLE-3 head; it goes to `out/head`. Returns how the run went.

    What there is to say before training, how much of the text its tokens are, goes to `say`.

    Raises:
        InvalidArgument: More depths than a block has tokens for, or layers that are not there.
        ModelError: A target that no such head can be made for.
    """
    if depths >= how.block_tokens:
        problem = f"must be {how.block_tokens - 1} or fewer: a block has {how.block_tokens} tokens"
        raise InvalidArgument("--depths", f"{problem}, and a draft begins behind the first")
    what = {"kind": "eagle", "target": target, "prompts": prompts, "depths": depths}
    what[INPUTS] = inputs.contents(data.files, [target])
    folder = RunFolder(out, {**what, **runs.facts(shape, data, loop, how)})
    with folder.alone():
        model = runs.load_target(target, how)
        encoder = Encoder(target, model)
        config = model.config.get_text_config()
        eagle_start.check(model, target, shape)
        accelerator = make_accelerator(how.device, half=how.half)
        batches = runs.mixture(data, target, model, encoder, how)
        ids, share = _guessed(batches, data.written, shape.vocab, config.vocab_size)
        if ids is not None:
            say(f"The tokens that it can guess are {share:.2%} of those counted")
        net = EagleNet(eagle_start.start(model, shape, ids, seed=how.seed))
        domains = held_out.load(data.held_out, model, encoder, prompts)
        task = eagle_training.EagleTraining(model, net, depths, domains, accelerator)
        train(task, batches, folder, accelerator, loop, progress)
        weights, lm_head = net.weights(), model.get_output_embeddings().weight
        directory = out / "head"
        if not eagle_checkpoint.holds(directory, weights, lm_head=lm_head):
            with writing(directory):
                eagle_checkpoint.save(directory, weights, lm_head=lm_head, config=config.to_dict())
    return folder.state


def _guessed(
    batches: Blocks | Mixture, files: Sequence[Path], count: int, vocab_size: int
) -> tuple[Tensor | None, float]:
    """See `frequent`: of what the target wrote, or of corpora."""
    if isinstance(batches, Blocks):
        return eagle_start.frequent([batches.ids], count, vocab_size)
    texts = (text for file in files for text in written.read(file, vocab_size))
    answers = (torch.tensor(text.ids[text.prompt_tokens :], dtype=torch.int64) for text in texts)
    return eagle_start.frequent(answers, count, vocab_size)


def _save_heads(directory: Path, weights: HeadWeights, lm_head: Tensor) -> None:
    """Writes heads; where the same stand there, they stay, and so does a tree chosen for them."""
    if not medusa_checkpoint.holds(directory, weights, lm_head=lm_head):
        with writing(directory):
            medusa_checkpoint.save(directory, weights, lm_head=lm_head)
