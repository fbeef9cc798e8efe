"""`python -m drafter`: configuration and logs, then `drafter.serving`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common.rpc import process
from drafter.config import DrafterConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a drafter until it is told to stop; returns the exit status."""
    return process.run(
        DrafterConfig,
        _serve,
        argv,
        prog="drafter",
        description="Drafts tokens for verifiers with a small model.",
    )


def _serve(settings: DrafterConfig) -> None:
    # With torch, which takes seconds: help, and what is wrong with a flag, do not wait for it.
    from drafter import serving

    serving.run(settings)


if __name__ == "__main__":
    sys.exit(main())
