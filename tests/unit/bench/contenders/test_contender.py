from __future__ import annotations

from pathlib import Path

import pytest

from bench.contenders.contender import Contender, Loading
from bench.contenders.generate import Transformers
from common.errors import StartupError


def test_contenders_decode_alike_in_processes_of_their_own(demo_target: Path) -> None:
    prompt = [1, 300, 301, 302]
    loading = Loading(target=str(demo_target), dtype="float32")
    with (
        Contender("transformers", loading) as reference,
        Contender("engine", loading) as engine,
    ):
        expected, sample = (contender.generate(prompt, 12) for contender in (reference, engine))
    assert sample.ids == expected.ids
    assert 1 < len(sample.ids) <= 12
    assert sample.tokens == expected.tokens == len(sample.ids) - 1
    assert expected.seconds > 0
    assert sample.seconds > 0


def test_drawn_texts_follow_from_the_seed(demo_target: Path) -> None:
    loading = Loading(target=str(demo_target), dtype="float32", temperature=0.9)
    with Contender("engine", loading) as engine:
        for contender in (engine, Transformers(loading)):
            first, other, again = (contender.generate([1, 300], 12, seed).ids for seed in (1, 2, 1))
            assert first == again != other


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        Contender("engine", Loading(target=str(tmp_path))) as engine,
        pytest.raises(StartupError, match=r"no config\.json there"),
    ):
        engine.generate([1], 2)


def test_one_that_died_is_an_error(tmp_path: Path) -> None:
    with Contender("engine", Loading(target=str(tmp_path))) as engine:
        engine._started().kill()
        with pytest.raises(StartupError, match="the contender engine died"):
            engine.generate([1], 2)
