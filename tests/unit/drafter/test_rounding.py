"""A drafter is rounded where that is faster and it drafts the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ModelError
from common.model.kernels import Kernels
from common.model.loader import Dtype, LoadedModel, load
from common.model.quantized import Quantize
from drafter import rounding
from drafter.rounding import DraftQuantize, compare, load_drafter
from tests import tiny_models


@pytest.mark.parametrize(
    ("agreement", "share", "rounded"), [(0.97, 0.6, True), (0.8, 0.6, False), (0.99, 0.95, False)]
)
def test_auto_asks_for_both(
    agreement: float,
    share: float,
    rounded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounding, "compare", lambda exact, other: (agreement, share))
    loaded = load_drafter(str(tiny_models.save("llama", tmp_path)), quantize="auto", device="cpu")
    assert ("int8" in loaded.kernels) is rounded


@pytest.mark.parametrize("quantize", ["auto", "int8"])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_int8_is_beside_bfloat16_where_the_decoder_runs_it(
    kernels: Kernels, quantize: DraftQuantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alike for who says so and who leaves it to the drafter: it has such products beside no other
    type."""
    monkeypatch.setattr(rounding, "compare", lambda exact, other: (1.0, 0.5))
    directory = str(tiny_models.save("llama", tmp_path))
    by_decoder = load(directory, device="cpu", kernels=kernels).compiled
    loaded = load_drafter(
        directory, quantize=quantize, dtype="float32", device="cpu", kernels=kernels
    )
    assert "int8" in loaded.kernels
    assert loaded.compiled is by_decoder
    assert loaded.dtype == (torch.bfloat16 if by_decoder else torch.float32)


@pytest.mark.parametrize(("dtype", "types"), [("bfloat16", 1), ("float32", 2)])
def test_what_torch_runs_in_int8_is_loaded_once_beside_a_type(
    dtype: Dtype, types: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Dtype] = []

    def watched(path: str, *, dtype: Dtype, **options: Any) -> LoadedModel:
        asked.append(dtype)
        return load(path, dtype=dtype, **options)

    monkeypatch.setattr(rounding, "load", watched)
    directory = str(tiny_models.save("llama", tmp_path))
    options: dict[str, Any] = {"dtype": dtype, "device": "cpu", "kernels": "torch"}
    assert not load_drafter(directory, quantize="int8", **options).compiled
    assert len(asked) == len(set(asked)) == types


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_who_says_what_to_do_is_not_asked_again(
    quantize: DraftQuantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(rounding, "compare")
    directory = str(tiny_models.save("llama", tmp_path))
    loaded = load_drafter(directory, quantize=quantize, device="cpu")
    assert ("int8" in loaded.kernels) is (quantize == "int8")


@pytest.mark.parametrize("kind", ["phimoe", "llama"])
def test_what_cannot_be_rounded_stays_as_it_is(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is loaded again only where nothing says before that it will be refused."""
    caplog.set_level("INFO", rounding.__name__)
    asked: list[Quantize] = []
    refusal = "its experts are no linear layers"

    def watched(path: str, *, quantize: Quantize, **options: Any) -> LoadedModel:
        asked.append(quantize)
        if quantize != "none":
            raise ModelError(refusal)
        return load(path, quantize=quantize, **options)

    monkeypatch.setattr(rounding, "load", watched)
    directory = str(tiny_models.save(kind, tmp_path))
    loaded = load_drafter(directory, quantize="auto", device="cpu")
    assert "int8" not in loaded.kernels
    assert asked == (["none"] if kind == "phimoe" else ["none", "int8"])
    (said,) = (each for each in caplog.records if each.name == rounding.__name__)
    assert refusal in said.__dict__["reason"]


@pytest.mark.parametrize("kind", ["gpt_oss", "mixtral"])
def test_experts_are_rounded_where_the_decoder_runs_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "compare", lambda exact, other: (1.0, 0.5))
    directory = str(tiny_models.save(kind, tmp_path))
    by_decoder = load(directory, device="cpu").compiled
    loaded = load_drafter(directory, quantize="auto", device="cpu")
    assert ("int8" in loaded.kernels) is by_decoder


def test_a_model_agrees_with_itself_and_nearly_with_itself_rounded(demo_draft: Path) -> None:
    exact, again = (load(str(demo_draft), device="cpu") for _ in range(2))
    assert compare(exact, again)[0] == 1.0
    rounded = load(str(demo_draft), device="cpu", quantize="int8")
    assert 0.9 < compare(exact, rounded)[0] < 1.0


def test_a_model_shorter_than_the_text_is_compared(tmp_path: Path) -> None:
    directory = str(tiny_models.save("llama", tmp_path, max_position_embeddings=40))
    exact, again = (load(directory, device="cpu") for _ in range(2))
    assert compare(exact, again)[0] == 1.0
