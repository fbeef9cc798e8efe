"""Whether a device computes."""

from __future__ import annotations

import pytest
import torch

from common import accelerator


def test_a_processor_always_computes() -> None:
    accelerator.check(torch.device("cpu"))


def test_a_gpu_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerator.fault("cpu") == ""

    def ones(*_: object, device: str) -> None:
        raise RuntimeError(f"\nThe driver of {device} is too old.\nPlease update it.")

    monkeypatch.setattr(torch, "ones", ones)
    assert accelerator.fault("cuda:1") == "The driver of cuda:1 is too old."


def test_a_gpu_that_computes_nothing_any_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def synchronize(device: torch.device) -> None:
        asked.append(device)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        accelerator.check(torch.device("cuda:1"))
    assert asked == [torch.device("cuda:1")]
