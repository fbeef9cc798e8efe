"""Commands that the server distribution adds: named at once, imported when they run.

A distribution offers them as entry points of the group `paceline.commands`, each a plain function
that typer can turn into a command, or an application of typer with commands of its own.
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

import typer

from paceline.errors import PacelineError

GROUP = "paceline.commands"

# For the help, where importing the commands would take seconds.
_SUMMARIES = {
    "up": "Start a gateway, a verifier and a drafter on this machine.",
    "demo": "Watch the bundled models generate, with and without speculation.",
    "bench": "Measure speed, every method.",
    "train": "Train a model, a drafter, Medusa heads, an EAGLE head.",
    "fleet": "See, plan and change a fleet of workers.",
}

# Of those that are plain functions; an application has its own.
_EXAMPLES = {
    "up": "paceline up --port 7070",
    "demo": "paceline demo --json",
    "bench": "paceline bench --methods draft,medusa --per-domain 2",
}


LEAVING_MORE = ("up", "train", "bench")
"""Those that leave something where standard output is closed: services, or files."""


class MissingCommandError(PacelineError):
    """A command needs what is not installed."""


@cache
def summaries() -> dict[str, str]:
    """Returns the commands' names, each with its line in the help."""
    installed = {point.name: "" for point in entry_points(group=GROUP)}
    return {**_SUMMARIES, **{name: _SUMMARIES.get(name, "") for name in installed}}


def placeholder(name: str) -> Any:
    """Returns a command that only has a summary, or None where there is no such command."""
    if name not in summaries():
        return None
    return _command(name, lambda: None, help=summaries()[name])


def load(name: str) -> Any:
    """Imports a command.

    Raises:
        MissingCommandError: The server distribution, or one of its extras, is not installed.
    """
    needs = f'`paceline {name}` needs the server distribution: pip install "paceline-server[all]"'
    points = entry_points(group=GROUP, name=name)
    if not points:
        raise MissingCommandError(needs)
    try:
        function = next(iter(points)).load()
    except ImportError as exc:
        raise MissingCommandError(f"{needs} ({exc})") from exc
    example = _EXAMPLES.get(name)
    return _command(name, function, epilog=example and f"Example: {example}")


def _command(name: str, function: Any, **settings: Any) -> Any:
    """Makes a command from a function; typer has no public way but an application of one."""
    if isinstance(function, typer.Typer):
        return typer.main.get_command(function)
    single = typer.Typer(add_completion=False)
    single.command(name, **settings)(function)
    return typer.main.get_command(single)
