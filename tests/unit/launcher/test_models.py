from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ModelError
from launcher import models


def _pair(chosen: models.Models) -> tuple[Path, Path | None]:
    return chosen.target, chosen.draft


def test_the_bundled_models_are_the_default(
    demo_target: Path, demo_draft: Path, demo_medusa: Path, demo_eagle: Path
) -> None:
    chosen = models.choose()
    assert _pair(chosen) == (demo_target, demo_draft)
    assert (chosen.medusa, chosen.eagle) == (demo_medusa, demo_eagle)


def test_a_target_of_ones_own_gets_no_draft_that_does_not_fit(demo_target: Path) -> None:
    assert models.choose(demo_target) == models.Models(target=demo_target)


def test_a_comparison_needs_what_drafts(
    demo_target: Path, demo_draft: Path, demo_medusa: Path, demo_eagle: Path
) -> None:
    with pytest.raises(ModelError, match="--draft, --medusa or --eagle"):
        models.Models(target=demo_target).require_drafts()
    for role, directory in (
        ("draft", demo_draft),
        ("medusa", demo_medusa),
        ("eagle", demo_eagle),
    ):
        models.choose(demo_target, **{role: directory}).require_drafts()


def test_a_draft_of_ones_own_goes_with_the_bundled_target(
    demo_target: Path, demo_draft: Path
) -> None:
    assert _pair(models.choose(None, demo_draft)) == (demo_target, demo_draft)


def test_a_wrong_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--target: no such directory: .*/nowhere"):
        models.choose(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"--draft: holds no config\.json"):
        models.choose(None, tmp_path)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "model.safetensors", "medusa.safetensors"])
def test_heads_may_lie_in_a_model(name: str, tmp_path: Path, demo_target: Path) -> None:
    with pytest.raises(ModelError, match=r"--medusa: holds no medusa\* or model\*"):
        models.choose(demo_target, None, tmp_path)
    (tmp_path / name).touch()
    assert models.choose(demo_target, None, tmp_path).medusa == tmp_path


def test_a_head_has_a_configuration(tmp_path: Path, demo_target: Path) -> None:
    with pytest.raises(ModelError, match=r"--eagle: holds no config\.json"):
        models.choose(demo_target, None, eagle=tmp_path)
    (tmp_path / "config.json").touch()
    assert models.choose(demo_target, None, eagle=tmp_path).eagle == tmp_path


def test_missing_bundled_models_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "BUNDLED", tmp_path)
    with pytest.raises(ModelError, match="--target"):
        models.choose()


def test_what_to_try_goes_without_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    assert models.choose().prompt == '"Once upon a time"'
    assert models.Models(target=tmp_path).prompt == "--token-ids 1,2,3"
