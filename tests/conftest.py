"""Fixtures every test may use. What only one folder needs stands in that folder's conftest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read when torch is first imported. On a machine whose cores are busy, threads that wait for each
# other at every small product make tests many times slower; tests of threads set their own count.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# And where a test sets two, they sleep until the other one is there instead of taking its core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The bundled target model: a real, trained one, 14.2 M parameters."""
    return ROOT / "models" / "demo" / "target"


@pytest.fixture(scope="session")
def demo_medusa() -> Path:
    """Medusa heads trained for `demo_target`."""
    return ROOT / "models" / "demo" / "medusa"


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The bundled draft model, distilled from `demo_target` and sharing its tokenizer."""
    return ROOT / "models" / "demo" / "draft"
