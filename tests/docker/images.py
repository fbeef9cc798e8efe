"""What the Dockerfiles say, as far as tests need it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {file.stem: file for file in sorted((ROOT / "docker").glob("*.Dockerfile"))}


# By its path: a package called docker may be installed, too.
requirements: Callable[[list[str]], list[str]] = runpy.run_path(
    str(ROOT / "docker" / "requirements.py")
)["requirements"]


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction of a Dockerfile, on one line."""

    stage: int
    word: str
    rest: str


def instructions(image: str) -> list[Instruction]:
    """Reads a Dockerfile; what stands before the first FROM is stage -1."""
    text = re.sub(r"\\\n\s*", "", FILES[image].read_text(encoding="utf-8"))
    found, stage = [], -1
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if not word or word.startswith("#"):
            continue
        stage += word == "FROM"
        found.append(Instruction(stage=stage, word=word, rest=rest))
    return found


def extras(image: str) -> list[str]:
    """Returns the extras of paceline-server that an image installs."""
    (run,) = (
        each.rest
        for each in instructions(image)
        if "requirements.py" in each.rest and each.word == "RUN"
    )
    found = re.search(r"requirements\.py ([\w ]+) >", run)
    assert found is not None
    return found[1].split()
