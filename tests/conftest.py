"""Fixtures every test may use. What only one folder needs stands in that folder's conftest."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read when torch is first imported. On a machine whose cores are busy, threads that wait for each
# other at every small product make tests many times slower; tests of threads set their own count.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# And where a test sets two, they sleep until the other one is there instead of taking its core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Read when Triton is first imported, as torch does where it is there. Without a GPU its kernels are
# interpreted: slowly, and in the order of operations they are written in.
if not Path("/dev/nvidia0").exists() or version("torch").endswith("+cpu"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run: what nobody changed does not fail for somebody's change. New ones
# are looked for with `--hypothesis-profile=explore`; one that fails becomes an `@example`. No time
# limit for an example either: machines are busy.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _COMMON, derandomize=True)
settings.register_profile("explore", _COMMON, print_blob=True)
settings.load_profile("suite")

ROOT = Path(__file__).parents[1]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests, and what they import, last as long as the run: looking through them for garbage, again
    and again, takes a quarter of the time in which they are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The bundled target model: a real, trained one, 14.2 M parameters."""
    return ROOT / "models" / "demo" / "target"


@pytest.fixture(scope="session")
def demo_medusa() -> Path:
    """Medusa heads trained for `demo_target`."""
    return ROOT / "models" / "demo" / "medusa"


@pytest.fixture(scope="session")
def demo_eagle() -> Path:
    """An EAGLE-3 head trained for `demo_target`."""
    return ROOT / "models" / "demo" / "eagle"


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The bundled draft model, distilled from `demo_target` and sharing its tokenizer."""
    return ROOT / "models" / "demo" / "draft"
