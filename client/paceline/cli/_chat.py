"""`paceline chat`."""

import contextlib
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Annotated

import typer

from paceline._client import Client
from paceline._generation import Generation
from paceline._requests import text
from paceline.cli import _options
from paceline.cli._group import report
from paceline.cli._streaming import show
from paceline.errors import ArgumentError, CancelledError, PacelineError

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
    on_terminal = _options.standard_input().isatty() and sys.stdout.isatty()
    with Client(address) as client:
        for line in _turns(on_terminal):
            turns = [*history, {"role": "user", "content": line}]
            with contextlib.ExitStack() as stack:
                asked_at = time.monotonic()
                generation = client.generate(messages=turns, **arguments)
                if on_terminal:
                    stack.enter_context(_outlived(generation))
                answer = show(
                    generation,
                    asked_at=asked_at,
                    as_json=as_json,
                    color=_options.use_color(color),
                )
                history = [*turns, {"role": "assistant", "content": answer.text}]


@contextlib.contextmanager
def _outlived(generation: Generation) -> Iterator[None]:
    """Keeps what ends a turn from ending the conversation: an error, or Ctrl-C.

    That cancels the answer. Raised where gRPC waits, it would leave locked what its own thread
    needs, and no later turn would be answered.
    """

    def cancel(*_: object) -> None:  # elsewhere, for it takes locks that are held here
        threading.Thread(target=generation.cancel, daemon=True).start()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    except CancelledError:
        typer.echo()  # behind the terminal's ^C
    except PacelineError as exc:
        report(str(exc))
    finally:
        signal.signal(signal.SIGINT, before)


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
            if on_terminal:
                typer.echo()  # the shell's prompt comes next
            return
        if line == EXIT_COMMAND:
            return
        if line and not (on_terminal and _refused(line)):
            yield line


def _refused(line: str) -> bool:
    """Whether a line cannot be sent, which is told; of what has no terminal requests tell it."""
    try:
        text("line", line)
    except ArgumentError as exc:
        report(str(exc))
        return True
    return False
