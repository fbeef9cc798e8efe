"""The folder of a training run: settings, checkpoint, best weights, curves.

run.json             the settings; a run that has begun goes on only with the same ones
checkpoint/          weights.safetensors, optimizer.pt, state.json: where to go on
best.safetensors     the weights with the best score so far
curves.jsonl, .png   what was measured, by step
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training import curves
from training.errors import RunError

_SETTINGS = "run.json"
_CHECKPOINT = "checkpoint"
_NEW = "checkpoint.new"
_STATE = "state.json"
_BEST = "best.safetensors"


@dataclass
class State:
    """How far a run has come."""

    step: int = 0
    """Steps done."""
    best_score: float | None = None
    """Highest score measured."""
    best_step: int = 0
    """Steps done when it was."""
    best: dict[str, float] = field(default_factory=dict)
    """All that was measured then."""


class RunFolder:
    """One run's folder.

    Args:
        path: Made where it is missing.
        settings: What the run is; a folder where another run has begun is refused, here and once
            more where training begins.

    Raises:
        RunError: A run with other settings has begun in the folder.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.state = State()
        self.points: list[curves.Point] = []
        self._settings = json.loads(json.dumps(settings, default=str))
        path.mkdir(parents=True, exist_ok=True)
        self._check()

    @property
    def begun(self) -> bool:
        """Whether training has begun here; a run that did not come so far binds nobody."""
        return any((self.path / name).exists() for name in (curves.LINES, _CHECKPOINT, _NEW))

    def resume(self, module: nn.Module, optimizer: Any, schedule: Any) -> None:
        """Makes the folder this run's, and goes back to the last checkpoint, if there is one.

        Raises:
            RunError: A run with other settings has begun meanwhile, or the checkpoint is damaged.
        """
        self._check()
        text = json.dumps(self._settings, indent=2) + "\n"
        (self.path / _SETTINGS).write_text(text, encoding="utf-8")
        folder, new = self.path / _CHECKPOINT, self.path / _NEW
        if not folder.is_dir() and (new / _STATE).is_file():
            new.rename(folder)  # a crash came between the two
        if not folder.is_dir():
            curves.rewrite(self.path, [])
            return
        try:
            module.load_state_dict(load_file(folder / "weights.safetensors"))
            held = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
            facts = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except Exception as error:  # damaged files fail in many ways; all mean the same
            raise RunError(f"{folder}: cannot go on from it: {error}") from error
        optimizer.load_state_dict(held["optimizer"])
        schedule.load_state_dict(held["schedule"])
        self.state = State(**facts)
        self.points = [p for p in curves.read(self.path) if p["step"] <= self.state.step]
        curves.rewrite(self.path, self.points)

    def save(self, module: nn.Module, optimizer: Any, schedule: Any) -> None:
        """Writes a checkpoint; a crash meanwhile leaves the one before it, or this one."""
        new, folder = self.path / _NEW, self.path / _CHECKPOINT
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        save_file(_tensors(module), new / "weights.safetensors")
        held = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save(held, new / "optimizer.pt")
        facts = json.dumps(asdict(self.state))
        (new / _STATE).write_text(facts + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
        curves.plot(self.path, self.points)

    def record(self, point: curves.Point) -> None:
        """Adds a point to the curves."""
        self.points.append(point)
        curves.append(self.path, point)

    def score(self, module: nn.Module, found: Mapping[str, float]) -> None:
        """Keeps the weights if their score is the best so far."""
        best = self.state.best_score
        if best is not None and found["score"] <= best:
            return
        save_file(_tensors(module), self.path / _BEST)
        self.state.best_score, self.state.best_step = found["score"], self.state.step
        self.state.best = dict(found)

    def load_best(self, module: nn.Module) -> None:
        """Gives a module the best weights, where any were kept."""
        if (self.path / _BEST).is_file():
            module.load_state_dict(load_file(self.path / _BEST))

    def _check(self) -> None:
        file = self.path / _SETTINGS
        if self.begun and file.is_file():
            _same_settings(file, self._settings)


def _same_settings(file: Path, wanted: Mapping[str, Any]) -> None:
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{file}: cannot be read: {error}") from error
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            raise RunError(
                f"{file.parent} holds a run with {name} {there.get(name)}, not {wanted.get(name)}: "
                "give another --out, or the same settings to go on"
            )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights by name; those that share memory once each, copied."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
