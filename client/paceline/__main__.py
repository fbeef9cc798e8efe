"""`python -m paceline`, for where the `paceline` command is not on the path."""

from paceline.cli import main

main()
