"""Held-out domains: what they are told apart by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from training import held_out
from training.encode import Encoder
from training.errors import DataError
from training.models import load_model


def test_two_domains_of_one_name_are_refused(
    target: Path, encoder: Encoder, stories: Path, tmp_path: Path
) -> None:
    other = shutil.copy(stories, tmp_path / "stories.jsonl")
    with pytest.raises(DataError, match=r"domain stories, as .*stories\.jsonl is: rename one"):
        held_out.load([stories, Path(other)], load_model(target), encoder, 4)
