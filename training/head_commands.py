"""Commands of `paceline train` about heads, and about how often guesses are right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from launcher.commandline import MOST_THREADS
from training import options as o

guessing = typer.Typer(add_completion=False)


@guessing.command(
    epilog="Example: paceline train medusa --target models/demo/target --corpus dialogues.txt "
    "--written runs/written.jsonl --held-out dev.txt --out runs/heads"
)
def medusa(
    target: o.Target,
    corpus: o.Corpus,
    held_out: o.HeldOut,
    out: o.Out,
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
        float,
        typer.Option(
            min=0, max=1, help="The base model's in joint training; the heads' is 4 times"
        ),
    ] = 1e-4,
    evaluate_every: o.EvaluateEvery = 190,
    prompts: o.Prompts = 40,
    seed: o.Seed = 0,
    device: o.DeviceOption = "auto",
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Train Medusa heads over a frozen target, and go on with the whole model if wanted."""
    from training import head_runs, runs
    from training.loop import LoopConfig

    with o.ending_well(), o.Bar(Console(), "medusa") as bar:
        o.set_threads(threads)
        frozen = LoopConfig(
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            weight_decay=0.0,
            evaluate_every=evaluate_every,
        )
        state = head_runs.medusa(
            target=target,
            shape=head_runs.HeadShape(
                num_heads=num_heads, num_layers=num_layers, own_lm=own_lm, sees_token=sees_token
            ),
            data=runs.Data(
                corpora=corpus, written=written or (), share=written_share, held_out=held_out
            ),
            prompts=prompts,
            out=out,
            frozen=frozen,
            joint=head_runs.joint_loop(frozen, joint_steps, joint_learning_rate),
            how=runs.How(seed=seed, block_tokens=block_tokens, device=o.place(device), half=half),
            progress=bar,
        )
    o.tell(out / "heads", state)


@guessing.command(
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
    device: o.DeviceOption = "auto",
    threads: Annotated[
        int,
        typer.Option(min=1, max=MOST_THREADS, help="CPU threads, as the verifier will have"),
    ] = 1,
) -> None:
    """Choose the sparse tree that gives most tokens a second, and store it with the heads."""
    from training import choose_tree

    with o.ending_well():
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


@guessing.command(
    epilog="Example: paceline train eagle --target models/demo/target --corpus dialogues.txt "
    "--written runs/written.jsonl --held-out dev.txt --out runs/eagle"
)
def eagle(
    target: o.Target,
    corpus: o.Corpus,
    held_out: o.HeldOut,
    out: o.Out,
    written: o.WrittenFiles = None,
    written_share: o.WrittenShare = 0.75,
    vocab: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens it can guess, the target's most frequent; 0 for all of them. The default "
            "suits the bundled target; large vocabularies want some 32000",
        ),
    ] = 1536,
    inner: Annotated[
        int, typer.Option(min=0, help="Inner size of its feed-forward part; 0 for the target's")
    ] = 0,
    taps: Annotated[
        str,
        typer.Option(
            help='Layers of the target whose inputs it reads, "2,6,9": one near the start, the '
            "middle and the end if not given"
        ),
    ] = "",
    depths: Annotated[
        int, typer.Option(min=1, help="Tokens that it drafts behind each other in training")
    ] = 4,
    steps: o.Steps = 2200,
    batch: o.Batch = 4,
    block_tokens: o.BlockTokens = 256,
    learning_rate: o.LearningRate = 2e-3,
    evaluate_every: o.EvaluateEvery = 275,
    prompts: o.Prompts = 40,
    seed: o.Seed = 0,
    device: o.DeviceOption = "auto",
    half: o.Half = True,
    threads: o.Threads = 0,
) -> None:
    """Train an EAGLE-3 head over a frozen target, on its own drafts."""
    from training import head_runs, runs
    from training.eagle_start import EagleShape, parsed_taps
    from training.loop import LoopConfig

    with o.ending_well(), o.Bar(Console(), "eagle") as bar:
        o.set_threads(threads)
        state = head_runs.eagle(
            target=target,
            shape=EagleShape(vocab=vocab, inner=inner, taps=parsed_taps(taps)),
            depths=depths,
            data=runs.Data(
                corpora=corpus, written=written or (), share=written_share, held_out=held_out
            ),
            prompts=prompts,
            out=out,
            loop=LoopConfig(
                steps=steps,
                batch=batch,
                learning_rate=learning_rate,
                weight_decay=0.0,
                evaluate_every=evaluate_every,
            ),
            how=runs.How(seed=seed, block_tokens=block_tokens, device=o.place(device), half=half),
            progress=bar,
            say=bar.say,
        )
    o.tell(out / "head", state)


@guessing.command(
    epilog="Example: paceline train measure --target models/demo/target --draft models/demo/draft "
    "--heads models/demo/medusa --eagle models/demo/eagle --held-out dev.txt"
)
def measure(
    target: o.Target,
    held_out: o.HeldOut,
    draft: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Directory of a drafter")
    ] = None,
    heads: Annotated[Path | None, typer.Option(help="Directory of Medusa heads")] = None,
    eagle: Annotated[Path | None, typer.Option(help="Directory of an EAGLE-3 head")] = None,
    prompts: o.Prompts = 40,
    device: o.DeviceOption = "auto",
    threads: o.Threads = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
) -> None:
    """Report acceptance of a drafter, Medusa heads, an EAGLE head or several on held-out prompts.

    On the half of them that chooses nothing.
    """
    from training import report

    if draft is None and heads is None and eagle is None:
        raise typer.BadParameter("give --draft, --heads, --eagle or several")
    with o.ending_well():
        o.set_threads(threads)
        found = report.run(
            target=target,
            draft=draft,
            heads=heads,
            eagle=eagle,
            files=held_out,
            prompts=prompts,
            device=o.place(device),
        )
    typer.echo(found.to_json() if as_json else "\n".join(found.lines()))
