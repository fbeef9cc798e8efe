"""The `paceline` command's first step, beside the package, whose import takes most of its start."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Runs `paceline.cli.main`; Ctrl-C before that is there ends as it does later."""
    try:
        with _grpc_in_silence():
            from paceline.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


@contextmanager
def _grpc_in_silence() -> Iterator[None]:
    """Has gRPC, where it is imported inside, log nothing beside the command's one line.

    Only here: services that the command starts log as they always do.
    """
    if "GRPC_VERBOSITY" in os.environ:
        yield
        return
    os.environ["GRPC_VERBOSITY"] = "NONE"
    try:
        yield
    finally:
        del os.environ["GRPC_VERBOSITY"]
