from __future__ import annotations

from pathlib import Path

import pytest

from bench.contender import Contender
from common.errors import StartupError


def test_contenders_decode_alike_in_processes_of_their_own(demo_target: Path) -> None:
    prompt = [1, 300, 301, 302]
    flags = (str(demo_target), "float32", 1)
    with Contender("transformers", *flags) as reference, Contender("engine", *flags) as engine:
        (expected, reference_s), (ids, engine_s) = (
            contender.generate(prompt, 12) for contender in (reference, engine)
        )
    assert ids == expected
    assert 1 < len(ids) <= 12
    assert reference_s > 0
    assert engine_s > 0


def test_one_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with (
        Contender("engine", str(tmp_path), "float32", 1) as engine,
        pytest.raises(StartupError, match="the contender engine died"),
    ):
        engine.generate([1], 2)
