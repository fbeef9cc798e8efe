"""`paceline generate`."""

import time
from typing import Annotated

import typer

from paceline._client import Client
from paceline.cli import _options
from paceline.cli._streaming import show
from paceline.errors import ArgumentError


@_options.expand
def generate(
    options: _options.GenerationOptions,
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to go on from; - reads it from standard input."),
    ] = None,
    token_ids: Annotated[
        str | None, typer.Option(metavar="ID,ID,…", help="The prompt as token ids instead.")
    ] = None,
    model: _options.Model = None,
    session_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Keeps a conversation's cache in place.")
    ] = None,
    address: _options.Address = None,
    as_json: _options.Json = False,
    color: _options.Color = None,
) -> None:
    """Generate text, streamed as it comes; statistics go to stderr."""
    if (prompt is None) == (token_ids is None):
        raise ArgumentError("prompt", "give either it, - for standard input, or --token-ids")
    ids = None if token_ids is None else _options.parse_ids("--token-ids", token_ids)
    text = None if prompt is None else _options.read_text(prompt)
    with Client(address) as client:
        asked_at = time.monotonic()
        generation = client.generate(
            text,
            token_ids=ids,
            model=model,
            session_id=session_id,
            **options.arguments(),
        )
        show(
            generation,
            asked_at=asked_at,
            as_json=as_json,
            color=_options.use_color(color),
            ids_without_text=ids is not None,
        )
