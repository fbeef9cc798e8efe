"""The `paceline` command's first step, beside the package, whose import takes most of its start."""

import sys


def main() -> None:
    """Runs `paceline.cli.main`; Ctrl-C before that is there ends as it does later."""
    try:
        from paceline.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
