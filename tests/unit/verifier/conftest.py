"""A tiny model for the engine's tests, with room and without, and its books after each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model.runner import Runner
from tests import tiny_models
from tests.inprocess import runner
from tests.unit.verifier.texts import TIGHT_BYTES


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def target(directory: Path) -> Runner:
    return runner(directory, "bfloat16")


@pytest.fixture(scope="module")
def tight(directory: Path) -> Runner:
    """The same with a cache of 20 blocks, 320 positions: a few sequences fill it."""
    return runner(directory, "bfloat16", kv_bytes=TIGHT_BYTES)


@pytest.fixture(scope="module")
def twin(directory: Path) -> Runner:
    """The same weights again: a drafter that is always right."""
    return runner(directory, "bfloat16")


@pytest.fixture
def nothing_left(target: Runner, tight: Runner) -> Iterator[None]:
    """No text has kept a block."""
    yield
    for one in (target, tight):
        one.pool.blocks.check()
        assert one.pool.blocks.held == 0
