"""`paceline models`, `tokenize` and `detokenize`: one question, one answer."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from paceline._client import Client
from paceline.cli import _options
from paceline.cli.render import visible


def models(
    timeout: _options.Timeout = None,
    address: _options.Address = None,
    as_json: _options.Json = False,
) -> None:
    """List the models the deployment serves."""
    with Client(address) as client:
        listed = client.models(timeout=timeout)
    if as_json:
        typer.echo(json.dumps({"models": [asdict(model) for model in listed]}))
        return
    for model in listed:
        takes = "chat" if model.has_chat_template else "text" if model.has_tokenizer else "ids only"
        line = (
            f"{model.name}  {model.max_model_len} tokens  vocabulary {model.vocab_size}  "
            f"{takes}  methods {', '.join(model.methods)}"
        )
        typer.echo(visible(line, sys.stdout))


def tokenize(
    text: Annotated[str, typer.Argument(help="What to encode; - reads standard input.")],
    model: _options.Model = None,
    timeout: _options.Timeout = None,
    address: _options.Address = None,
    as_json: _options.Json = False,
) -> None:
    """Print the token ids of a text."""
    with Client(address) as client:
        ids = client.tokenize(_options.read_text(text), model=model, timeout=timeout)
    typer.echo(json.dumps({"token_ids": ids}) if as_json else ",".join(map(str, ids)))


def detokenize(
    token_ids: Annotated[
        str, typer.Argument(metavar="ID,ID,…", help="What to decode; - reads standard input.")
    ],
    model: _options.Model = None,
    timeout: _options.Timeout = None,
    address: _options.Address = None,
    as_json: _options.Json = False,
) -> None:
    """Print the text of token ids."""
    ids = _options.parse_ids("token_ids", _options.read_text(token_ids))
    with Client(address) as client:
        text = client.detokenize(ids, model=model, timeout=timeout)
    _options.keep_whole()
    shown = json.dumps({"text": text}) if as_json else visible(text, sys.stdout)
    typer.echo(shown, color=True)  # or it would take escape sequences out of a pipe
