"""The folder of a training run: settings, checkpoint, best weights, curves.

run.json             the settings; a run that has begun goes on only with the same ones
checkpoint/          weights.safetensors, optimizer.pt, state.json: where to go on; .new while it
                     is written, .old where a crash came before the new one took its place
best.safetensors     the weights with the best score so far
lock                 held while a run is at work here
curves.jsonl, .png   what was measured, by step
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from common.errors import first_line, reason
from common.model import tensor_file
from training import curves
from training.errors import RunError
from training.settings import Settings
from training.whole import alone, beside, replacing

_SETTINGS = "run.json"
_CHECKPOINT = "checkpoint"
_OLD = "checkpoint.old"
_STATE = "state.json"
_BEST = "best.safetensors"
_LOCK = "lock"


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
        RunError: A run with other settings has begun in the folder, or it cannot be made.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.state = State()
        self.points: list[curves.Point] = []
        self._settings = Settings(path / _SETTINGS, path, settings)
        self._check()

    @property
    def begun(self) -> bool:
        """Whether training has begun here; a run that did not come so far binds nobody."""
        return any((self.path / name).exists() for name in (curves.LINES, _CHECKPOINT, _OLD))

    def alone(self) -> AbstractContextManager[None]:
        """Keeps other runs out of the folder meanwhile.

        Raises:
            RunError: Another run is at work there.
        """
        return alone(self.path / _LOCK, self.path)

    def resume(self, module: nn.Module, optimizer: Any, schedule: Any) -> None:
        """Makes the folder this run's, and goes back to the last checkpoint, if there is one.

        Raises:
            RunError: A run with other settings has begun meanwhile, or the checkpoint is damaged.
        """
        self._check()
        if not (self.begun and self._settings.file.is_file()):
            self._settings.keep()
        folder, old = self.path / _CHECKPOINT, self.path / _OLD
        if not folder.is_dir() and old.is_dir():
            old.rename(folder)  # a crash came between two renames
        if not folder.is_dir():
            curves.rewrite(self.path, [])
            return
        try:
            module.load_state_dict(load_file(folder / "weights.safetensors"))
            held = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
            optimizer.load_state_dict(held["optimizer"])
            schedule.load_state_dict(held["schedule"])
            self.state = _state(folder / _STATE)
        except Exception as error:  # damaged files fail in many ways; all mean the same
            raise RunError(f"{folder}: cannot go on from it: {first_line(error)}") from error
        self.points = [p for p in curves.read(self.path) if p["step"] <= self.state.step]
        curves.rewrite(self.path, self.points)

    def save(self, module: nn.Module, optimizer: Any, schedule: Any) -> None:
        """Writes a checkpoint; a crash meanwhile leaves the one before it, or this one.

        Raises:
            RunError: It cannot be written: the one before it is left.
        """
        folder, old = self.path / _CHECKPOINT, self.path / _OLD
        facts = json.dumps(asdict(self.state))
        held = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        with beside(folder) as new:
            new.mkdir()
            tensor_file.save(_tensors(module), new / "weights.safetensors")
            with (new / "optimizer.pt").open("wb") as file:  # of a path, torch does not say why
                torch.save(held, file)
            (new / _STATE).write_text(facts + "\n", encoding="utf-8")
            shutil.rmtree(old, ignore_errors=True)
            if folder.is_dir():
                folder.rename(old)
            new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        curves.plot(self.path, self.points)

    def record(self, point: curves.Point) -> None:
        """Adds a point to the curves."""
        self.points.append(point)
        curves.append(self.path, point)

    def score(self, module: nn.Module, found: Mapping[str, float]) -> None:
        """Keeps the weights if their score is the best so far; NaN never is.

        Raises:
            RunError: They cannot be written.
        """
        score, best = found["score"], self.state.best_score
        if math.isnan(score) or (best is not None and score <= best):
            return
        tensors = _tensors(module)
        with replacing(self.path / _BEST) as new:
            tensor_file.save(tensors, new)
        self.state.best_score, self.state.best_step = score, self.state.step
        self.state.best = dict(found)

    def load_best(self, module: nn.Module) -> None:
        """Gives a module the best weights, where any were kept.

        Raises:
            RunError: They are damaged or gone.
        """
        if not self.state.best:
            return
        file = self.path / _BEST
        try:
            module.load_state_dict(load_file(file))
        except Exception as error:  # as of a checkpoint
            raise RunError(f"{file}: cannot be read: {reason(error)}") from error

    def _check(self) -> None:
        if self.begun and self._settings.file.is_file():
            self._settings.check()


def _state(file: Path) -> State:
    facts = json.loads(file.read_bytes())
    if not isinstance(facts, dict) or facts.keys() != vars(State()).keys():
        raise ValueError(f"{file.name} holds something else than how far it has come")
    return State(**facts)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights by name; those that share memory once each, copied."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
