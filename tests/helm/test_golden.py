"""What the examples render to, kept so that a change of the chart shows what it changes.

After an intended change: PACELINE_UPDATE_GOLDEN=1 make test ARGS=tests/helm/test_golden.py
"""

import os
from pathlib import Path

import pytest

from tests.helm.chart import EXAMPLES, render, values

GOLDEN = Path(__file__).parent / "golden"


def document(name: str) -> str:
    texts = render(values(name))
    parts = (f"# {path}\n{text.strip()}\n" for path, text in sorted(texts.items()) if text.strip())
    return "\n".join(parts)


@pytest.mark.parametrize("name", EXAMPLES)
def test_renders_as_before(name: str) -> None:
    file = GOLDEN / f"{name}.txt"
    rendered = document(name)
    if os.environ.get("PACELINE_UPDATE_GOLDEN"):
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


def test_no_golden_file_is_left_behind() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(EXAMPLES)
