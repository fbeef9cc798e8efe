"""Shows one generation: streamed text with a line of statistics, or one line of JSON."""

import json
import sys
import time
from dataclasses import asdict

import typer

from paceline._generation import Generation
from paceline._types import Result
from paceline.cli import _options
from paceline.cli.render import ChunkPrinter, legend, stats_line, visible
from paceline.errors import PacelineError


def show(
    generation: Generation,
    *,
    asked_at: float,
    as_json: bool,
    color: bool,
    ids_without_text: bool = False,
) -> Result:
    """Prints a generation as it comes; leaving early, as by Ctrl-C, cancels it.

    Args:
        generation: Just started.
        asked_at: When it was asked for, by `time.monotonic`.
        as_json: Print the result's fields on one line of stdout instead of the text.
        color: Colour the text by how its tokens came.
        ids_without_text: Print the ids where there is no text, as of a model without a tokenizer.
    """
    _options.keep_whole()
    with generation:
        if as_json:
            result = generation.result()
            typer.echo(json.dumps(asdict(result)))
            return result
        printer = ChunkPrinter(sys.stdout, color=color)
        try:
            for chunk in generation:
                printer.print(chunk)
            result = generation.result()
        except PacelineError:
            printer.end_line()  # the error's own comes next
            raise
    if ids_without_text and not result.text:
        sys.stdout.write(",".join(map(str, result.token_ids)))
    typer.echo()
    stats = visible(stats_line(result, time.monotonic() - asked_at), sys.stderr)
    typer.echo(f"{legend()} · {stats}" if color else stats, err=True)
    return result
