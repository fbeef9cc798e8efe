"""A drafter is rounded where that is faster and it drafts the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.model.loader import LoadedModel, load
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


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_who_says_what_to_do_is_not_asked_again(
    quantize: DraftQuantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(rounding, "compare")
    directory = str(tiny_models.save("llama", tmp_path))
    loaded = load_drafter(directory, quantize=quantize, device="cpu")
    assert ("int8" in loaded.kernels) is (quantize == "int8")


@pytest.mark.parametrize("kind", ["phimoe", "gpt_oss"])
def test_what_cannot_be_rounded_stays_as_it_is(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is loaded again only where kernels of ours, which may round it, run it."""
    caplog.set_level("INFO", rounding.__name__)
    asked = []

    def watched(path: str, *, quantize: Quantize, **options: Any) -> LoadedModel:
        asked.append(quantize)
        return load(path, quantize=quantize, **options)

    monkeypatch.setattr(rounding, "load", watched)
    directory = str(tiny_models.save(kind, tmp_path))
    loaded = load_drafter(directory, quantize="auto", device="cpu")
    assert "int8" not in loaded.kernels
    assert asked == (["none", "int8"] if loaded.kernels.startswith("native") else ["none"])
    (said,) = (each for each in caplog.records if each.name == rounding.__name__)
    assert "its experts are no linear layers" in said.__dict__["reason"]


def test_a_model_agrees_with_itself_and_nearly_with_itself_rounded(demo_draft: Path) -> None:
    exact, again = (load(str(demo_draft), device="cpu") for _ in range(2))
    assert compare(exact, again)[0] == 1.0
    rounded = load(str(demo_draft), device="cpu", quantize="int8")
    assert 0.9 < compare(exact, rounded)[0] < 1.0


def test_a_model_shorter_than_the_text_is_compared(tmp_path: Path) -> None:
    directory = str(tiny_models.save("llama", tmp_path, max_position_embeddings=40))
    exact, again = (load(directory, device="cpu") for _ in range(2))
    assert compare(exact, again)[0] == 1.0
