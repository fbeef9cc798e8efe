"""Prints what extras of paceline-server need beyond this repository, one requirement a line.

Images install it before the source is copied in, so that a change of the source leaves the large
layers alone. Needs the standard library only.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def requirements(extras: Sequence[str], root: Path = ROOT) -> list[str]:
    """Collects the requirements of the SDK, of the services and of some extras.

    Args:
        extras: Names of extras in pyproject.toml.
        root: The repository.

    Raises:
        SystemExit: There is no such extra; says which there are.
    """
    server, client = (_project(root / each) for each in ("pyproject.toml", "client/pyproject.toml"))
    optional = server["optional-dependencies"]
    found = [*client["dependencies"], *server["dependencies"]]
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"error: no extra {extra}; there are {', '.join(sorted(optional))}")
        found += optional[extra]
    return sorted({each for each in found if not each.startswith("paceline")})


def _project(file: Path) -> dict:
    return tomllib.loads(file.read_text(encoding="utf-8"))["project"]


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")
