"""A service's process from its first line to its exit status, the same for every service."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

from common import config, logs
from common.errors import PacelineError, StartupError, Stuck

log = logging.getLogger(__name__)


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
        The exit status: 2 where the service could not start, and one line on stderr says why; 1
        where it could not go on, and the log says why.
    """
    try:
        settings = config.load(
            cls, sys.argv[1:] if argv is None else argv, prog=prog, description=description
        )
        logs.configure(prog, settings.log_level)
        with _ending_at_once():
            body(settings)
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PacelineError as error:
        stuck = isinstance(error, Stuck)
        extra = {"reason": str(error)}
        log.error("cannot go on", exc_info=None if stuck else error, extra=extra)
        if stuck:  # its thread would crash in an interpreter that is taken down
            os._exit(1)
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or importlib.util.find_spec(package):
            raise
        remedy = "pip install 'paceline-server[all]'"
        print(f"error: {package} is not installed; {remedy} brings it", file=sys.stderr)
        return 2
    return 0


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Has signals end the process until its server handles them: nothing is served yet.

    While a model loads, a container's first process, as which we run in a pod, would not even
    notice the default action; and what is raised there may be caught by whatever is being imported.
    """
    before = {each: signal.signal(each, _end) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    os._exit(128 + number)
