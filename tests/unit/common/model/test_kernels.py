"""Whose kernels a model runs by, and what becomes of a model whose rows influence each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ModelError
from common.model.loader import Dtype, load
from common.model.native import NativeModel
from common.model.output import Computed, Output
from common.model.runner import Runner
from common.model.segment import Segment
from common.model.whole_pass import WholePass
from tests import tiny_models


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_torch_alone_can_be_asked_for(quantize: str, demo_draft: Path) -> None:
    loaded = load(str(demo_draft), device="cpu", quantize=quantize, kernels="torch")
    assert not isinstance(loaded.forward, WholePass)
    assert "native" not in loaded.kernels
    assert Runner(loaded, kv_bytes=4 << 20).fingerprint


def test_rows_that_influence_each_other_are_not_served(
    demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the error says what leaves the kernels out."""
    loaded = load(str(demo_draft), device="cpu")
    if not isinstance(loaded.forward, NativeModel):
        pytest.skip("no compiled decoder here")
    right = NativeModel.__call__

    def wrong(self: NativeModel, segments: list[Segment], drawings: object) -> Output:
        output = right(self, segments)
        return Computed(output.logits + len(segments[0].ids), output.states)

    monkeypatch.setattr(NativeModel, "__call__", wrong)
    with pytest.raises(ModelError, match=r"through native.*size of the batch \(kernels: torch"):
        Runner(loaded, kv_bytes=4 << 20)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_model_that_computes_no_numbers_is_refused(kind: str, tmp_path: Path) -> None:
    model = tiny_models.stirred(kind, tmp_path)
    model.model.norm.weight.data[3] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="its logits change with the size of the batch"):
        Runner(load(str(tmp_path), device="cpu"), kv_bytes=4 << 20)


@pytest.mark.parametrize(
    ("kind", "changes", "dtype", "reason"),
    [
        ("phi", {}, "auto", "PhiForCausalLM is not of Llama's shape"),
        (
            "gemma2",
            {"attn_logit_softcapping": 0.0},
            "auto",
            "its scores or logits are kept within 0, not 0 to 100",
        ),
        ("llama", {"hidden_act": "relu"}, "auto", "its gates are bent by ReLU"),
        (
            "granite",
            {"residual_multiplier": 0.22},
            "float16",
            "residual_multiplier makes rows here that are too large for float16",
        ),
        ("granite", {"logits_scaling": 6}, "auto", "its logits are divided by 6, no power of two"),
    ],
)
def test_the_log_says_why_a_model_goes_through_torch(
    kind: str,
    changes: dict[str, object],
    dtype: Dtype,
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = str(tiny_models.save(kind, tmp_path, **changes))
    load(directory, device="cpu", dtype=dtype, kernels="torch")  # as it was asked for
    load(directory, device="cpu", dtype=dtype)
    (said,) = (record.__dict__ for record in caplog.records if "left out" in record.message)
    assert said["reason"] == reason


@pytest.mark.parametrize(("dtype", "slow"), [("float16", True), ("bfloat16", False)])
def test_the_log_says_which_format_is_slow(
    dtype: Dtype, slow: bool, demo_draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where torch was asked for."""
    load(str(demo_draft), device="cpu", dtype=dtype, kernels="torch")
    load(str(demo_draft), device="cpu", dtype=dtype)
    said = [record.__dict__["reason"] for record in caplog.records if "left out" in record.message]
    assert said == [f"{dtype} is slow here, bfloat16 and float32 are not"] * slow
