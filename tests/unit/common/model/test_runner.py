"""How long a text may be, and what is said where that is not what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ModelError
from common.model.loader import load
from common.model.runner import Runner
from tests import tiny_models

_ENOUGH = 8 << 20
"""Bytes of a cache that holds more than the model's length."""


@pytest.mark.parametrize(
    ("asked", "kv_bytes", "length", "said"),
    [
        (None, _ENOUGH, tiny_models.MAX_LEN, []),
        (100, _ENOUGH, 100, []),
        (
            2 * tiny_models.MAX_LEN,
            _ENOUGH,
            tiny_models.MAX_LEN,
            ["the model is made for shorter texts than were asked for"],
        ),
        (None, 40_000, 80, ["the cache holds less than the model's length"]),
    ],
)
def test_a_text_is_as_long_as_model_cache_and_caller_allow(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    asked: int | None,
    kv_bytes: int,
    length: int,
    said: list[str],
) -> None:
    loaded = load(str(tiny_models.save("llama", tmp_path)), device="cpu")
    caplog.clear()
    runner = Runner(loaded, kv_bytes=kv_bytes, max_len=asked)
    assert runner.max_len == length
    assert caplog.messages == said


def test_a_cache_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    loaded = load(str(tiny_models.save("llama", tmp_path)), device="cpu")
    with pytest.raises(ModelError, match="a cache of 1000 bytes holds no block; two take"):
        Runner(loaded, kv_bytes=1000)
