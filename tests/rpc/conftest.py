"""Tiny models for the services, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.model.runner import Runner
from tests import tiny_models
from tests.inprocess import runner


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by sharing a step between cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def target(tiny_directory: Path) -> Runner:
    """The verifier's model."""
    return runner(tiny_directory, "bfloat16")


@pytest.fixture(scope="session")
def twin(tiny_directory: Path) -> Runner:
    """The same weights again: a drafter that is always right."""
    return runner(tiny_directory, "bfloat16")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Other weights: a drafter that is hardly ever right."""
    directory = tiny_models.save("llama", tmp_path_factory.mktemp("stranger"), seed=4)
    return runner(directory, "bfloat16")
