"""A drafter's engine with a tiny model, and a verifier by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model.loader import Dtype
from common.model.runner import Runner
from drafter import outlook
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.unit.drafter.by_hand import Verifier


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    """In bfloat16 several tokens come of one call, where there is a compiled decoder."""
    kind: Dtype = request.param
    return kind


@pytest.fixture(scope="module")
def model(directory: Path, dtype: Dtype) -> Runner:
    return runner(directory, dtype)


@pytest.fixture(scope="module")
def judge(directory: Path, dtype: Dtype) -> Pair:
    """The same weights, decoding plainly: says what a draft must be."""
    return Pair.make(runner(directory, dtype))


@pytest.fixture
def verifier(model: Runner) -> Iterator[Verifier]:
    one = Verifier(DraftEngine(model, EngineConfig(max_sessions=4, max_batch_tokens=32)))
    yield one
    one.engine.sessions.forget(one.receive)
    model.pool.blocks.check()
    assert model.pool.blocks.held == 0


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome is too unlikely."""
    monkeypatch.setattr(outlook, "_LEAST", 0.0)
