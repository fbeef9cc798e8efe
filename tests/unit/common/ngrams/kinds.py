"""The compiled n-grams and those in Python."""

from __future__ import annotations

import importlib
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.ngrams import calibration, contexts, predictor


@dataclass(frozen=True)
class Kinds:
    """One implementation's classes."""

    contexts: type[contexts.Contexts]
    calibration: type[calibration.Calibration]
    predictor: type[predictor.Predictor]


IN_PYTHON = Kinds(contexts.Contexts, calibration.Calibration, predictor.Predictor)


def compiled() -> Kinds:
    """The compiled ones; skips where nothing could be compiled."""
    try:
        native = importlib.import_module("common.ngrams._native")
    except ImportError:
        header = Path(sysconfig.get_path("include"), "Python.h")
        if header.exists() and any(map(shutil.which, ("cc", "gcc", "clang"))):
            raise
        pytest.skip("n-grams were not compiled here")
    return Kinds(native.Contexts, native.Calibration, native.Predictor)
