"""`paceline chat`."""

import contextlib
import sys
import uuid
from collections.abc import Iterator
from typing import Annotated

import typer

from paceline._client import Client
from paceline.cli import _options
from paceline.cli._streaming import show

EXIT_COMMAND = "/exit"


@_options.expand
def chat(
    options: _options.GenerationOptions,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions before the first turn.")
    ] = None,
    model: _options.Model = None,
    session_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A new one unless given.")
    ] = None,
    address: _options.Address = None,
    as_json: _options.Json = False,
    color: _options.Color = None,
) -> None:
    """Talk to a model, turn by turn; /exit or Ctrl-D ends."""
    history = [{"role": "system", "content": system}] if system else []
    session_id = session_id or uuid.uuid4().hex
    with Client(address) as client:
        for line in _turns():
            history.append({"role": "user", "content": line})
            generation = client.generate(
                messages=history, model=model, session_id=session_id, **options.arguments()
            )
            answer = show(generation, as_json=as_json, color=_options.use_color(color))
            history.append({"role": "assistant", "content": answer.text})


def _turns() -> Iterator[str]:
    """Yields what the user says, asking for it on a terminal."""
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        prompt = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() editing and history
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        if line == EXIT_COMMAND:
            return
        if line:
            yield line
