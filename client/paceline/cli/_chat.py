"""`paceline chat`."""

import contextlib
import sys
import uuid
from collections.abc import Iterator
from typing import Annotated

import typer

from paceline._client import Client
from paceline.cli import _options
from paceline.cli._group import report
from paceline.cli._streaming import show
from paceline.errors import PacelineError

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
    """Talk to a model, turn by turn; /exit or Ctrl-D ends.

    On a terminal, Ctrl-C stops an answer, and at the prompt ends. A turn that
    is stopped, or fails, is taken back whole, and the next one can be asked.
    Without a terminal the first error ends.
    """
    history = [{"role": "system", "content": system}] if system else []
    arguments = {
        **options.arguments(),
        "model": model,
        "session_id": session_id or uuid.uuid4().hex,
    }
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Client(address) as client:
        for line in _turns(on_terminal):
            turns = [*history, {"role": "user", "content": line}]
            with _outlived(on_terminal):
                generation = client.generate(messages=turns, **arguments)
                answer = show(generation, as_json=as_json, color=_options.use_color(color))
                history = [*turns, {"role": "assistant", "content": answer.text}]


@contextlib.contextmanager
def _outlived(on_terminal: bool) -> Iterator[None]:
    """Keeps what ends a turn from ending a conversation on a terminal."""
    try:
        yield
    except KeyboardInterrupt:
        if not on_terminal:
            raise
        typer.echo()  # behind the terminal's ^C
    except PacelineError as exc:
        if not on_terminal:
            raise
        report(str(exc))


def _turns(on_terminal: bool) -> Iterator[str]:
    """Yields what the user says, asking for it on a terminal."""
    prompt = ""
    if on_terminal:
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
