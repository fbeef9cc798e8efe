"""Text on standard output, whatever that can show and however far it is read."""

from __future__ import annotations

import os
import sys


def shown(text: str) -> int:
    """Prints a text, with marks for what standard output cannot show.

    Returns:
        An exit code: that of an error for a text that finds no room, or no reader to its end.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"error: cannot write the output: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is unwritten
        return 1
    return 0
