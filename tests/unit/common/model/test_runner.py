"""How long a text may be, what is said where that is not what was asked for, and what attends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from common.errors import ModelError
from common.model import runner as module
from common.model.attention import without_plans
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


def test_a_model_whose_passes_fail_is_refused_by_name(tmp_path: Path) -> None:
    """As with more experts asked for than there are: what torch says of it comes along."""
    directory = tiny_models.save("mixtral", tmp_path / "few", num_experts_per_tok=8)
    loaded = load(str(directory), device="cpu")
    with pytest.raises(ModelError, match=r"few cannot be served .* first pass fails: .* range"):
        Runner(loaded, kv_bytes=_ENOUGH)


def test_on_gpus_torch_attends_without_cudnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    attend = functional.scaled_dot_product_attention

    def watched(*args: Any, **named: Any) -> Tensor:
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*args, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(module, "without_plans", lambda _: without_plans(torch.device("cuda")))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    Runner(load(str(tiny_models.save("mixtral", tmp_path)), device="cpu"), kv_bytes=_ENOUGH)
    assert enabled
    assert not any(enabled)
    assert torch.backends.cuda.cudnn_sdp_enabled() is before, "others' attention is theirs"
