"""Tiny models for the services, loaded once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.model.runner import Runner
from gateway import breaker
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.rpc.verifier_texts import SAMPLING, TOKENS
from tests.tiny_models import VOCAB
from verifier.drafting import clock


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


@pytest.fixture
def nothing_left(target: Runner, twin: Runner, stranger: Runner) -> Iterator[None]:
    """No text has kept a block."""
    yield
    for one in (target, twin, stranger):
        one.pool.blocks.check()
        assert one.pool.blocks.held == 0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers wait for honest drafters, however busy the machine is."""
    monkeypatch.setattr(clock, "_LEAST_PATIENCE_S", 10.0)
    monkeypatch.setattr(clock, "_MOST_PATIENCE_S", 10.0)


@pytest.fixture
def unforgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker that opens stays open for the length of a test."""
    monkeypatch.setattr(breaker, "_FIRST_PAUSE_S", 30.0)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Of one token and of several blocks of the cache."""
    draw = random.Random(1)
    return [[draw.randrange(3, VOCAB) for _ in range(length)] for length in (1, 20, 70, 33, 48, 5)]


@pytest.fixture(scope="session")
def plain(target: Runner, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt's text as the engine gives it without wire and without drafter."""
    pair = Pair.make(target)
    return [pair.generate(prompt, TOKENS, sampling=SAMPLING) for prompt in prompts]
