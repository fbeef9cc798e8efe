"""`python -m verifier`: configuration and logs, then `verifier.serving`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common.rpc import process
from verifier.config import VerifierConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verifier until it is told to stop; returns the exit status."""
    return process.run(
        VerifierConfig,
        _serve,
        argv,
        prog="verifier",
        description="Checks drafts with the target model and owns the committed tokens.",
    )


def _serve(settings: VerifierConfig) -> None:
    # With torch, which takes seconds: help, and what is wrong with a flag, do not wait for it.
    from verifier import serving

    serving.run(settings)


if __name__ == "__main__":
    sys.exit(main())
