"""The commands put together."""

from typing import Annotated

import typer

from paceline._version import __version__
from paceline.cli import _chat, _generate, _lookups
from paceline.cli._group import PacelineGroup

app = typer.Typer(
    cls=PacelineGroup,
    add_completion=False,
    invoke_without_command=True,
    help="Text generation with speculative decoding: one seed, one text.",
    epilog="Example: paceline up, and in another terminal: paceline generate 'Once upon a time'",
)


def example(text: str) -> str:
    """Words the last line of a command's help."""
    return f"Example: {text}"


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Runs when no command is named too."""
    if version:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(
    "generate", epilog=example("paceline generate 'Once upon a time' --max-tokens 64 --seed 7")
)(_generate.generate)
app.command("chat", epilog=example("paceline chat --system 'Answer in one sentence.'"))(_chat.chat)
app.command("models", epilog=example("paceline models --json"))(_lookups.models)
app.command("tokenize", epilog=example("paceline tokenize 'Once upon a time'"))(_lookups.tokenize)
app.command("detokenize", epilog=example("paceline detokenize 12,345,6"))(_lookups.detokenize)
