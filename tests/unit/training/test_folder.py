"""A run's folder: which weights are the best, and what crashes leave of a checkpoint."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from training import curves
from training.folder import RunFolder


class Killed(Exception):
    """Stands for the end of a process."""


def _module(weight: float) -> nn.Linear:
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, weight)
    return module


def _opened(path: Path, module: nn.Module) -> tuple[RunFolder, Any, Any]:
    optimizer = torch.optim.AdamW(module.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    folder = RunFolder(path, {})
    folder.resume(module, optimizer, schedule)
    return folder, optimizer, schedule


def _save(path: Path, step: int) -> None:
    """Writes the checkpoint of a step, whose number is the weight."""
    module = _module(0)
    folder, optimizer, schedule = _opened(path, module)
    nn.init.constant_(module.weight, step)
    folder.state.step = step
    folder.save(module, optimizer, schedule)


def test_a_score_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {})
    for weight, score in ((1.0, math.nan), (2.0, 0.5), (3.0, math.nan), (4.0, 0.4)):
        folder.score(_module(weight), {"score": score})
    assert folder.state.best_score == 0.5
    assert load_file(tmp_path / "best.safetensors")["weight"].item() == 2


def test_a_crash_at_any_file_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, last = 0, math.inf

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                raise Killed
            return call(*args, **options)

        return dying

    monkeypatch.setattr(curves, "plot", lambda folder, points: None)  # takes longest by far
    for name in ("mkdir", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    _save(tmp_path / "whole", 1)
    before = calls
    _save(tmp_path / "whole", 2)
    needed = calls - before
    assert needed > 4
    found = []
    for survived in range(needed):
        path, last = tmp_path / str(survived), math.inf
        _save(path, 1)
        calls, last = 0, survived
        with pytest.raises(Killed):
            _save(path, 2)
        last = math.inf
        module = _module(0)
        found.append(_opened(path, module)[0].state.step)
        assert module.weight.item() == found[-1]
        _save(path, 3)
        assert _opened(path, module)[0].state.step == 3
        assert not list(path.glob("checkpoint.*"))
    assert set(found) == {1, 2}
