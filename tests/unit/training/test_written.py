"""Text by the target: as it is served, and in a file that nothing is lost from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from common.model.hf import ends_of
from tests import tiny_models
from tests.unit.training.conftest import WRITING
from tests.unit.training.full_disk import full_after
from training import runs, written
from training.commands import train as commands
from training.encode import Encoder
from training.errors import DataError, RunError
from training.models import load_model
from training.whole import alone
from training.written import WriteConfig, Written, WrittenFile, continued


def _write(
    out: Path, target: Path, corpora: list[Path], config: WriteConfig = WRITING, device: str = "cpu"
) -> int:
    return runs.write(
        target=target,
        corpora=corpora,
        out=out,
        config=config,
        device=device,
        progress=lambda done, total: None,
    )


def _copied(texts: Path, folder: Path) -> Path:
    """The file and its settings, in another folder."""
    shutil.copy(texts.with_name(f"{texts.name}.run.json"), folder)
    return Path(shutil.copy(texts, folder))


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_writing_goes_on_after_whole_batches(
    part: float, target: Path, stories: Path, talks: Path, texts: Path, tmp_path: Path
) -> None:
    out, whole = _copied(texts, tmp_path), texts.read_text()
    out.write_text(whole[: int(len(whole) * part)])
    assert _write(out, target, [stories, talks]) == 24
    assert out.read_text() == whole


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"texts": 8}, "with texts 24, not 8"),
        ({"seed": 1}, "with seed 0, not 1"),
        ({"temperature": 0.5}, "with temperature 0.8, not 0.5"),
    ],
)
def test_a_file_of_other_settings_is_left_alone(
    change: dict[str, float],
    problem: str,
    target: Path,
    stories: Path,
    talks: Path,
    texts: Path,
    tmp_path: Path,
) -> None:
    out = _copied(texts, tmp_path)
    with pytest.raises(RunError, match=rf"written\.jsonl holds a run {problem}: give another"):
        _write(out, target, [stories, talks], replace(WRITING, **change))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="holds a run with corpora"):
        _write(out, target, [stories])
    with pytest.raises(RunError, match="holds a run with target"):
        _write(out, tmp_path, [stories, talks])
    assert out.read_bytes() == texts.read_bytes()


def test_a_file_that_something_else_made_is_left_alone(target: Path, stories: Path) -> None:
    before = stories.read_bytes()
    arguments = ["--target", str(target), "--corpus", str(stories), "--out", str(stories)]
    result = CliRunner().invoke(commands, ["write", *arguments])
    assert result.exit_code == 1
    assert "error: " in result.output
    assert "is there, but no stories.jsonl.run.json" in result.output
    assert stories.read_bytes() == before


def test_a_file_that_was_changed_is_left_alone(
    target: Path, stories: Path, talks: Path, texts: Path, tmp_path: Path
) -> None:
    out, whole = _copied(texts, tmp_path), texts.read_text()
    for content, error, problem in (
        ("\n" + whole, DataError, "line 1: needs"),
        (whole + whole, RunError, "holds 48 texts, but this run has 24"),
    ):
        out.write_text(content)
        with pytest.raises(error, match=problem):
            _write(out, target, [stories, talks])
        assert out.read_text() == content


def test_a_file_that_holds_nothing_yet_binds_nobody(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "written.jsonl"
    WrittenFile(out, {"seed": 1}).resume([8])
    out.touch()
    assert WrittenFile(out, {"seed": 2}).resume([8]) == (0, 0)
    out.write_text('{"ids": [1], "prompt_tokens": 1}\n')
    with pytest.raises(RunError, match="holds a run with seed 2, not 1"):
        WrittenFile(out, {"seed": 1})


def test_a_full_disk_is_named_and_the_batch_written_again(tmp_path: Path) -> None:
    out = WrittenFile(tmp_path / "written.jsonl", {})
    out.resume([2, 2])
    texts = [Written([1, 2, 3], 1), Written([4, 5], 1)]
    out.append(texts)
    with (
        full_after(out.path.stat().st_size + 5),
        pytest.raises(RunError, match=r"written\.jsonl: cannot be written: File too large$"),
    ):
        out.append(texts)
    assert out.resume([2, 2]) == (2, 1)
    assert written.read(out.path) == texts


def test_files_of_written_text_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "written.jsonl"
    for content, problem in (
        (b"", "empty"),
        (b'{"ids": [1]}\n', "line 1: needs"),
        (b"\xff\n", "not UTF-8"),
        (b"[" * 100_000 + b"\n", "line 1: needs"),
        (
            b'{"ids": [5], "prompt_tokens": 1}\n{"ids": [320], "prompt_tokens": 1}\n',
            "line 2: id 320",
        ),
        (b'{"ids": [5, -7], "prompt_tokens": 1}\n', "line 1: id -7, but the target's are 0 to 319"),
        (b'{"ids": [5000000000], "prompt_tokens": 1}\n', "line 1: id 5000000000"),
        (b'{"ids": [Infinity], "prompt_tokens": 1}\n', "line 1: .*must be whole numbers"),
        (b'{"ids": ["5"], "prompt_tokens": 1}\n', "line 1: .*must be whole numbers"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=problem) as raised:
            written.read(file, 320)
        assert "written.jsonl" in str(raised.value)


def test_text_by_another_model_is_refused(target: Path, texts: Path, tmp_path: Path) -> None:
    copy = _copied(texts, tmp_path)
    written.check_origin(copy, target, [])
    moved = shutil.copytree(target, tmp_path / "moved")
    written.check_origin(copy, moved, [])
    (moved / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"written\.jsonl: written by a model that was in .*target"):
        written.check_origin(copy, moved, [])
    settings = copy.with_name("written.jsonl.run.json")
    older = json.loads(settings.read_text())
    del older["inputs"]
    settings.write_text(json.dumps(older))
    written.check_origin(copy, moved, [])
    settings.unlink()
    written.check_origin(copy, moved, [])


def test_two_runs_do_not_write_one_file(
    target: Path, stories: Path, talks: Path, texts: Path, tmp_path: Path
) -> None:
    out = _copied(texts, tmp_path)
    with (
        alone(out, out),
        pytest.raises(RunError, match=r"written\.jsonl: another run is at work there"),
    ):
        _write(out, target, [stories, talks])
    assert _write(out, target, [stories, talks]) == 24


@pytest.mark.parametrize("greedy", [True, False])
def test_only_ends_are_taken_from_the_settings_for_generation(
    greedy: bool, encoder: Encoder, tmp_path: Path
) -> None:
    directory = tiny_models.save("llama", tmp_path)
    prompts, config = [[5, 9, 7], [8, 6]], WriteConfig(max_new_tokens=24)

    def texts() -> list[list[int]]:
        torch.manual_seed(0)
        model = load_model(directory)
        found = continued(model, encoder, prompts, config, greedy=greedy)
        return [text.ids[text.prompt_tokens :] for text in found]

    file = directory / "generation_config.json"
    settings = json.loads(file.read_text()) | {"eos_token_id": []}
    file.write_text(json.dumps(settings))
    plain = texts()
    assert [len(row) for row in plain] == [24, 24]
    first, second = plain[0][4], plain[1][9]
    penalties = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "min_new_tokens": 24}
    file.write_text(json.dumps(settings | penalties | {"eos_token_id": [first, second]}))
    assert ends_of(load_model(directory)) == (first, second)
    assert texts() == [_up_to_an_end(row, {first, second}) for row in plain]


def _up_to_an_end(row: list[int], last: set[int]) -> list[int]:
    return row[: next(place for place, token in enumerate(row) if token in last) + 1]


def test_a_model_whose_settings_name_no_end_has_that_of_its_config(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path, eos_token_id=3)
    (directory / "generation_config.json").write_text("{}")
    assert ends_of(load_model(directory)) == (3,)
