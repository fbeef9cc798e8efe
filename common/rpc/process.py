"""A service's process from its first line to its exit status, the same for every service."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeVar

from common import config, logs
from common.errors import StartupError


class Settings(Protocol):
    """What every service's configuration holds."""

    @property
    def log_level(self) -> str:
        """Least severity that is logged."""


S = TypeVar("S", bound=Settings)


def run(
    cls: type[S],
    body: Callable[[S], None],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str,
) -> int:
    """Reads the configuration, begins to log and runs the service.

    Args:
        cls: The configuration, as `common.config` takes it.
        body: The service; returns when it was told to stop.
        argv: Arguments; those of the process where None.
        prog: The service's name.
        description: One paragraph for `--help`.

    Returns:
        The exit status: 2 where the service could not start, and one line on stderr says why.
    """
    try:
        settings = config.load(
            cls, sys.argv[1:] if argv is None else argv, prog=prog, description=description
        )
        logs.configure(prog, settings.log_level)
        # Until the server handles it: while a model loads, a container's first process, as which
        # we run in a pod, would not even notice the default action.
        signal.signal(signal.SIGTERM, _terminated)
        body(settings)
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _terminated(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
