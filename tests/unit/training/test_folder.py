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

from tests.unit.training.full_disk import full_after
from training import curves
from training.errors import RunError
from training.folder import RunFolder
from training.settings import Settings


class Killed(BaseException):
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


@pytest.mark.parametrize("most_bytes", [0, 1000], ids=["weights", "optimizer"])
def test_a_full_disk_is_named_and_leaves_the_last_checkpoint(
    most_bytes: int, tmp_path: Path
) -> None:
    _save(tmp_path, 1)
    module = _module(2)
    folder, optimizer, schedule = _opened(tmp_path, module)
    with (
        full_after(most_bytes),
        pytest.raises(RunError, match=r"/checkpoint: cannot be written: .*File too large"),
    ):
        folder.save(module, optimizer, schedule)
    assert not list(tmp_path.glob("*.new"))
    assert _opened(tmp_path, _module(0))[0].state.step == 1


def test_a_full_disk_leaves_the_best_weights(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {})
    folder.score(_module(1), {"score": 0.1})
    with (
        full_after(0),
        pytest.raises(RunError, match=r"best\.safetensors: cannot be written: .*File too large"),
    ):
        folder.score(_module(2), {"score": 0.2})
    assert not list(tmp_path.glob("*.new"))
    assert load_file(tmp_path / "best.safetensors")["weight"].item() == 1
    assert folder.state.best_score == 0.1


def test_a_full_disk_takes_no_point_of_the_curves(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {})
    with (
        full_after(0),
        pytest.raises(RunError, match=r"curves\.jsonl: cannot be written: File too large$"),
    ):
        folder.record({"step": 1})


@pytest.mark.parametrize("most_bytes", [0, 20])
def test_best_weights_are_replaced_whole_or_not(most_bytes: int, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {})
    folder.score(_module(1), {"score": 0.1})
    before = (tmp_path / "best.safetensors").stat().st_ino
    with full_after(most_bytes), pytest.raises(RunError):
        folder.score(_module(2), {"score": 0.2})
    assert (tmp_path / "best.safetensors").stat().st_ino == before
    folder.score(_module(3), {"score": 0.3})
    module = _module(0)
    folder.load_best(module)
    assert module.weight.item() == 3


def test_best_weights_that_are_damaged_or_gone_are_named(tmp_path: Path) -> None:
    folder, file = RunFolder(tmp_path, {}), tmp_path / "best.safetensors"
    folder.load_best(_module(1))  # none were kept yet
    folder.score(_module(1), {"score": 0.1})
    file.write_bytes(b"not tensors")
    with pytest.raises(RunError, match=r"best\.safetensors: cannot be read"):
        folder.load_best(_module(1))
    file.unlink()
    with pytest.raises(RunError, match=r"best\.safetensors: cannot be read: No such file"):
        folder.load_best(_module(1))


@pytest.mark.parametrize("held", ["[1]", "null", "{}", '{"step": 3}', "[" * 100_000])
def test_a_checkpoint_whose_state_is_none_is_named(held: str, tmp_path: Path) -> None:
    _save(tmp_path, 1)
    (tmp_path / "checkpoint" / "state.json").write_text(held)
    with pytest.raises(RunError, match=r"/checkpoint: cannot go on from it: ."):
        _opened(tmp_path, _module(0))


def test_a_checkpoint_of_another_optimizer_is_named(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    torch.save({"optimizer": {}}, tmp_path / "checkpoint" / "optimizer.pt")
    with pytest.raises(RunError, match=r"/checkpoint: cannot go on from it: ."):
        _opened(tmp_path, _module(0))


@pytest.mark.parametrize("held", [b"[1]", b"3", b'{"loss": 1}', b"\xff", b"[" * 100_000])
def test_curves_end_where_a_line_is_no_point(held: bytes, tmp_path: Path) -> None:
    curves.rewrite(tmp_path, [{"step": 1, "loss": 0.5}])
    with (tmp_path / curves.LINES).open("ab") as file:
        file.write(held + b"\n")
    assert curves.read(tmp_path) == [{"step": 1, "loss": 0.5}]


@pytest.mark.parametrize("held", ["[1]", "null", '{"inputs": [1]}', "[" * 100_000, None])
def test_settings_that_are_none_are_named(held: str | None, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.mkdir() if held is None else file.write_text(held)
    with pytest.raises(RunError) as caught:
        Settings(file, tmp_path, {"kind": "eagle"}).check()
    assert str(caught.value).startswith(f"{file}: ")
    assert str(caught.value).count(str(file)) == 1


def test_a_run_of_another_kind_is_named_by_that(tmp_path: Path) -> None:
    curves.rewrite(tmp_path, [])  # it has begun
    RunFolder(tmp_path, {"kind": "eagle", "depths": 4}).resume(_module(1), None, None)
    with pytest.raises(RunError, match="holds a run with kind eagle, not pretrain: give another"):
        RunFolder(tmp_path, {"kind": "pretrain", "context": 2048})


def test_settings_are_written_where_a_run_begins_and_never_again(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    file = tmp_path / "run.json"
    before = file.stat().st_ino, file.stat().st_mtime_ns
    _save(tmp_path, 2)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before


def test_a_second_run_is_kept_out_of_a_folder_while_one_is_at_work(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, {}), RunFolder(tmp_path, {})
    with (
        first.alone(),
        pytest.raises(RunError, match="another run is at work there"),
        second.alone(),
    ):
        pass
    with second.alone():
        pass


def test_all_that_a_run_leaves_is_as_readable(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    RunFolder(tmp_path, {}).score(_module(1), {"score": 0.1})
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 4
    assert len({file.stat().st_mode for file in files}) == 1


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
