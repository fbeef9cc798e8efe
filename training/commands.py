"""The commands `paceline train …`, loaded by the SDK's command line.

Arguments and what is printed; each kind of training has a module of its own, imported when it
runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from common.commands import ending_well
from launcher.commandline import Device
from training import options as o

if TYPE_CHECKING:
    from training.folder import State

train = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Pretrain a model, distil a drafter, train Medusa heads and choose their tree. A run that "
    "was stopped goes on from its last checkpoint when the same command is given again.",
    epilog="Example: paceline train medusa --target models/demo/target --corpus dialogues.txt "
    "--held-out dev.txt --out runs/heads",
)

_Out = Annotated[Path, typer.Option(file_okay=False, help="Folder of the run and its results")]


@train.command(
    epilog="Example: paceline train pretrain --corpus stories.jsonl --out runs/target --steps 1700"
)
def pretrain(
    corpus: o.Corpus,
    out: _Out,
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
    device: o.DeviceOption = Device.AUTO,
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Train a small Llama-shaped model and its tokenizer; the defaults are the demo target's."""
    from training import runs
    from training.loop import LoopConfig
    from training.pretrain import ModelShape

    with ending_well(), o.Bar(Console(), "pretrain") as bar:
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
    _tell(out / "model", state)


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
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the half that is sampled")] = 0.8,
    seed: o.Seed = 0,
    device: o.DeviceOption = Device.AUTO,
    threads: o.Threads = 0,
) -> None:
    """Let the target continue beginnings of a corpus: half greedily, half sampled."""
    from training import runs
    from training.written import WriteConfig

    with ending_well(), o.Bar(Console(), "write") as bar:
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
    out: _Out,
    written: o.WrittenFiles = None,
    written_share: o.WrittenShare = 0.75,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from random weights of the draft's shape")
    ] = False,
    labels: Annotated[
        str, typer.Option(help='"target": its distributions; "text": the text alone, to compare')
    ] = "target",
    steps: o.Steps = 2000,
    batch: o.Batch = 8,
    block_tokens: o.BlockTokens = 256,
    learning_rate: o.LearningRate = 1e-3,
    evaluate_every: o.EvaluateEvery = 200,
    prompts: o.Prompts = 40,
    seed: o.Seed = 0,
    device: o.DeviceOption = Device.AUTO,
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Teach a small model the target's distributions; measured acceptance picks the checkpoint."""
    from training import runs
    from training.distill import Labels
    from training.loop import LoopConfig

    if labels not in list(Labels):
        raise typer.BadParameter(f"must be one of {', '.join(Labels)}", param_hint="--labels")
    with ending_well(), o.Bar(Console(), "distill") as bar:
        o.set_threads(threads)
        state = runs.distill(
            target=target,
            draft=draft,
            fresh=fresh,
            labels=Labels(labels),
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
    _tell(out / "model", state)


@train.command(
    epilog="Example: paceline train medusa --target models/demo/target --corpus dialogues.txt "
    "--written runs/written.jsonl --held-out dev.txt --out runs/heads"
)
def medusa(
    target: o.Target,
    corpus: o.Corpus,
    held_out: o.HeldOut,
    out: _Out,
    written: o.WrittenFiles = None,
    written_share: o.WrittenShare = 0.75,
    num_heads: Annotated[int, typer.Option(min=1, help="Heads")] = 4,
    num_layers: Annotated[int, typer.Option(min=1, help="Blocks of a head")] = 1,
    own_lm: Annotated[
        bool,
        typer.Option(
            "--own-lm/--shared-lm", help="Whether heads have output matrices of their own"
        ),
    ] = True,
    sees_token: Annotated[
        bool,
        typer.Option(
            "--see-token/--state-only",
            help="Whether heads see the token chosen from the state, as published heads do not",
        ),
    ] = True,
    steps: Annotated[int, typer.Option(min=1, help="Steps with the target frozen")] = 1900,
    joint_steps: Annotated[
        int, typer.Option(min=0, help="Further steps with the whole model (Medusa-2)")
    ] = 0,
    batch: o.Batch = 8,
    block_tokens: o.BlockTokens = 256,
    learning_rate: o.LearningRate = 4e-3,
    joint_learning_rate: Annotated[
        float, typer.Option(min=0, help="The base model's in joint training; the heads' is 4 times")
    ] = 1e-4,
    evaluate_every: o.EvaluateEvery = 190,
    prompts: o.Prompts = 40,
    seed: o.Seed = 0,
    device: o.DeviceOption = Device.AUTO,
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Train Medusa heads over a frozen target, and go on with the whole model if wanted."""
    from training import runs
    from training.loop import LoopConfig

    with ending_well(), o.Bar(Console(), "medusa") as bar:
        o.set_threads(threads)
        frozen = LoopConfig(
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            weight_decay=0.0,
            evaluate_every=evaluate_every,
        )
        state = runs.medusa(
            target=target,
            shape=runs.HeadShape(
                num_heads=num_heads, num_layers=num_layers, own_lm=own_lm, sees_token=sees_token
            ),
            data=runs.Data(
                corpora=corpus, written=written or (), share=written_share, held_out=held_out
            ),
            prompts=prompts,
            out=out,
            frozen=frozen,
            joint=runs.joint_loop(frozen, joint_steps, joint_learning_rate),
            how=runs.How(seed=seed, block_tokens=block_tokens, device=o.place(device), half=half),
            progress=bar,
        )
    _tell(out / "heads", state)


@train.command(
    epilog="Example: paceline train tree --target models/demo/target --heads runs/heads/heads "
    "--held-out dev.txt"
)
def tree(
    target: o.Target,
    heads: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Heads; their medusa.json is changed")
    ],
    held_out: o.HeldOut,
    step_ms: Annotated[
        str,
        typer.Option(
            help='Time of a pass by its rows, "1:3.2,8:4.5,32:9": measured here if not given'
        ),
    ] = "",
    most_rows: Annotated[int, typer.Option(min=2, help="Largest tree, the root included")] = 64,
    prompts: o.Prompts = 40,
    device: o.DeviceOption = Device.AUTO,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads, as the verifier will have")] = 1,
) -> None:
    """Choose the sparse tree that gives most tokens a second, and store it with the heads."""
    from training import choose_tree

    with ending_well():
        o.set_threads(threads)
        lines = choose_tree.run(
            target=target,
            heads=heads,
            files=held_out,
            step_ms=choose_tree.parsed(step_ms),
            most_rows=most_rows,
            prompts=prompts,
            device=o.place(device),
        )
    typer.echo("\n".join(lines))


@train.command(
    epilog="Example: paceline train measure --target models/demo/target --draft models/demo/draft "
    "--heads models/demo/medusa --held-out dev.txt"
)
def measure(
    target: o.Target,
    held_out: o.HeldOut,
    draft: Annotated[Path | None, typer.Option(help="Directory of a drafter")] = None,
    heads: Annotated[Path | None, typer.Option(help="Directory of Medusa heads")] = None,
    prompts: o.Prompts = 40,
    device: o.DeviceOption = Device.AUTO,
    threads: o.Threads = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
) -> None:
    """Report acceptance of a drafter, of heads or of both on held-out prompts.

    On the half of them that chooses nothing.
    """
    from training import report

    if draft is None and heads is None:
        raise typer.BadParameter("give --draft, --heads or both")
    with ending_well():
        o.set_threads(threads)
        found = report.run(
            target=target,
            draft=draft,
            heads=heads,
            files=held_out,
            prompts=prompts,
            device=o.place(device),
        )
    typer.echo(found.to_json() if as_json else "\n".join(found.lines()))


def _tell(where: Path, state: State) -> None:
    best = f"those of step {state.best_step}"
    if not state.best_step:
        best = "those that training started from: no step was better"
    if not state.best:
        best = "the last: no score was a number"
    figures = ", ".join(f"{name} {value:.3f}" for name, value in state.best.items())
    typer.echo(f"Written to {where}\nThe best weights are {best}\n{figures}")
