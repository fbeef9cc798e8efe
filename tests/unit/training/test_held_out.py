"""Held-out domains: what they are told apart by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.training.conftest import unseen
from training import held_out, written
from training.encode import Encoder
from training.errors import DataError
from training.models import load_model


def test_two_domains_of_one_name_are_refused(
    target: Path, encoder: Encoder, stories: Path, tmp_path: Path
) -> None:
    other = shutil.copy(stories, tmp_path / "stories.jsonl")
    with pytest.raises(DataError, match=r"domain stories, as .*stories\.jsonl is: rename one"):
        held_out.load([stories, Path(other)], load_model(target), encoder, 4)


def test_what_chooses_does_not_report(target: Path, encoder: Encoder, tmp_path: Path) -> None:
    """Texts of which many begin alike: none is in both halves."""
    file = tmp_path / "alike.jsonl"
    places = ("pond", "house", "wood")
    starts = [*["The cat."] * 3, *(f"The dog is in the {place}." for place in places)]
    file.write_text("".join(f'{{"text": "{start}"}}\n' for start in starts))
    model = load_model(target)
    (domain,) = held_out.load([file], model, encoder, 6)
    assert len(domain.choosing) == 3
    assert 1 <= len(domain.reporting) < 3
    assert not any(text in domain.choosing for text in domain.reporting)
    file.write_text('{"text": "The cat."}\n' * 4)
    with pytest.raises(DataError, match="4 prompts of up to 256 tokens: needs more that differ"):
        held_out.load([file], model, encoder, 4)


def test_what_the_target_went_on_from_is_not_held_out(
    target: Path, texts: Path, talks: Path, tmp_path: Path
) -> None:
    written.check_origin(texts, target, [unseen(talks)])
    copy = Path(shutil.copy(talks, tmp_path / "dev.txt"))
    with pytest.raises(
        DataError, match=r"dev\.txt: held out, but .*written\.jsonl goes on from it"
    ):
        written.check_origin(texts, target, [copy])
