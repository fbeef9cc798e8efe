"""The commands `paceline train …`, loaded by the SDK's command line.

Arguments and what is printed; each kind of training has a module of its own, imported when it
runs. Commands about heads, and about how often guesses are right, are `head_commands`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from training import options as o
from training.head_commands import guessing

train = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Pretrain a model, distil a drafter, train Medusa heads and choose their tree, train an "
    "EAGLE-3 head. A run that was stopped goes on from its last checkpoint when the same command "
    "is given again.",
    epilog="Example: paceline train medusa --target models/demo/target --corpus dialogues.txt "
    "--held-out dev.txt --out runs/heads",
)


@train.command(
    epilog="Example: paceline train pretrain --corpus stories.jsonl --out runs/target --steps 1700"
)
def pretrain(
    corpus: o.Corpus,
    out: o.Out,
    steps: o.Steps = 1700,
    batch: o.Batch = 10,
    block_tokens: o.BlockTokens = 400,
    learning_rate: o.LearningRate = 2e-3,
    vocab: Annotated[int, typer.Option(min=300, help="Ids of the tokenizer")] = 4096,
    layers: Annotated[int, typer.Option(min=1, help="Decoder layers")] = 12,
    hidden: Annotated[int, typer.Option(min=8, help="Size of the residual stream")] = 320,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads")] = 10,
    kv_heads: Annotated[int, typer.Option(min=1, help="Key/value heads")] = 2,
    mlp: Annotated[int, typer.Option(min=8, help="Inner size of feed-forward layers")] = 864,
    evaluate_every: o.EvaluateEvery = 100,
    seed: o.Seed = 0,
    device: o.DeviceOption = "auto",
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Train a small Llama-shaped model and its tokenizer; the defaults are the demo target's."""
    from training import runs
    from training.loop import LoopConfig
    from training.pretrain import ModelShape

    with o.ending_well(), o.Bar(Console(), "pretrain") as bar:
        o.set_threads(threads)
        state = runs.pretrain(
            corpora=corpus,
            out=out,
            shape=ModelShape(
                vocab=vocab,
                layers=layers,
                hidden=hidden,
                heads=heads,
                kv_heads=kv_heads,
                mlp=mlp,
            ),
            loop=LoopConfig(
                steps=steps,
                batch=batch,
                learning_rate=learning_rate,
                evaluate_every=evaluate_every,
            ),
            how=runs.How(seed=seed, block_tokens=block_tokens, device=o.place(device), half=half),
            progress=bar,
        )
    o.tell(out / "model", state)


@train.command(
    epilog="Example: paceline train write --target models/demo/target --corpus dialogues.txt "
    "--out runs/written.jsonl"
)
def write(
    target: o.Target,
    corpus: o.Corpus,
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write, settings beside it")],
    texts: Annotated[int, typer.Option(min=1, help="How many texts")] = 9600,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.01, max=100, help="Of the half that is sampled")
    ] = 0.8,
    seed: o.Seed = 0,
    device: o.DeviceOption = "auto",
    threads: o.Threads = 0,
) -> None:
    """Let the target continue beginnings of a corpus: half greedily, half sampled."""
    from training import runs
    from training.written import WriteConfig

    with o.ending_well(), o.Bar(Console(), "write") as bar:
        o.set_threads(threads)
        count = runs.write(
            target=target,
            corpora=corpus,
            out=out,
            config=WriteConfig(
                texts=texts, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
            ),
            device=o.place(device),
            progress=bar,
        )
    typer.echo(f"{count} texts in {out}")


@train.command(
    epilog="Example: paceline train distill --target models/demo/target --draft models/demo/draft "
    "--corpus dialogues.txt --written runs/written.jsonl --held-out dev.txt --out runs/draft"
)
def distill(
    target: o.Target,
    draft: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Model to start from, or its shape")
    ],
    corpus: o.Corpus,
    held_out: o.HeldOut,
    out: o.Out,
    written: o.WrittenFiles = None,
    written_share: o.WrittenShare = 0.75,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from random weights of the draft's shape")
    ] = False,
    labels: Annotated[
        Literal["target", "text"],
        typer.Option(help="Learn the target's distributions, or the text alone, to compare"),
    ] = "target",
    steps: o.Steps = 2000,
    batch: o.Batch = 8,
    block_tokens: o.BlockTokens = 256,
    learning_rate: o.LearningRate = 1e-3,
    evaluate_every: o.EvaluateEvery = 200,
    prompts: o.Prompts = 40,
    seed: o.Seed = 0,
    device: o.DeviceOption = "auto",
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Teach a small model the target's distributions; measured acceptance picks the checkpoint."""
    from training import runs
    from training.loop import LoopConfig

    with o.ending_well(), o.Bar(Console(), "distill") as bar:
        o.set_threads(threads)
        state = runs.distill(
            target=target,
            draft=draft,
            fresh=fresh,
            labels=labels,
            data=runs.Data(
                corpora=corpus, written=written or (), share=written_share, held_out=held_out
            ),
            prompts=prompts,
            out=out,
            loop=LoopConfig(
                steps=steps,
                batch=batch,
                learning_rate=learning_rate,
                evaluate_every=evaluate_every,
            ),
            how=runs.How(seed=seed, block_tokens=block_tokens, device=o.place(device), half=half),
            progress=bar,
        )
    o.tell(out / "model", state)


train.add_typer(guessing)
