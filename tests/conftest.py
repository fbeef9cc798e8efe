"""Fixtures every test may use. What only one folder needs stands in that folder's conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The bundled target model: a real, trained one, 14.2 M parameters."""
    return ROOT / "models" / "demo" / "target"


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The bundled draft model, distilled from `demo_target` and sharing its tokenizer."""
    return ROOT / "models" / "demo" / "draft"
