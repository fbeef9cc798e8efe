"""How the server distribution's commands end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from paceline import PacelineError as ClientError
from paceline.cli._group import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, report
from paceline.errors import ArgumentError

from common.errors import InvalidArgument, PacelineError

INTERRUPTED = EXIT_INTERRUPTED
"""Exit code of what somebody had end early."""


@contextmanager
def ending_well(tell: Callable[[str], None] = report) -> Iterator[None]:
    """Turns an error of ours, or of the SDK's, into one line and an exit code.

    Args:
        tell: Prints what an error says.

    Raises:
        typer.Exit: There was one: 2 where the command is to be given otherwise, else 1.
    """
    try:
        yield
    except (InvalidArgument, ArgumentError) as error:
        tell(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except (PacelineError, ClientError) as error:
        tell(str(error))
        raise typer.Exit(EXIT_ERROR) from None
