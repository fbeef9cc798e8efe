"""`python -m gateway.auth`: makes a token, to be given to a caller, and its line for the file."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from common.printing import shown
from gateway.auth import token_file

_DESCRIPTION = """\
Makes a bearer token, and the hash that the gateway's file of --auth.tokens holds of it. Neither is
kept: the token is for its caller alone, who gives it as PACELINE_TOKEN.
"""

_EXAMPLE = f"""\
example:
  $ python -m gateway.auth
  token:  pl-hq3R...
  sha256: 5e88...

{token_file.__doc__ or ""}"""


class _Parser(argparse.ArgumentParser):
    """One whose help can be shown anywhere."""

    def print_help(self, file: object = None) -> None:
        """Prints it and exits."""
        self.exit(shown(self.format_help().rstrip()))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a new token and what stands in the file for it; neither is kept.

    Args:
        argv: Arguments without the program's name: --help or none. None takes the process's.

    Returns:
        An exit code.
    """
    parser = _Parser(
        prog="python -m gateway.auth",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    token = f"pl-{secrets.token_urlsafe(32)}"
    return shown(f"token:  {token}\nsha256: {token_file.token_hash(token)}")


if __name__ == "__main__":
    sys.exit(main())
