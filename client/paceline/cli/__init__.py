"""The `paceline` command."""

import sys


def main() -> None:
    """Runs the command line; exits with 0, 1 (an error), 2 (wrong usage) or 130 (Ctrl-C)."""
    # Imported here so that `paceline.cli.render` alone does not bring in typer.
    try:
        from paceline.cli._app import app
    except KeyboardInterrupt:  # later ones are for `PacelineGroup.main`
        sys.exit(130)
    app(prog_name="paceline")
