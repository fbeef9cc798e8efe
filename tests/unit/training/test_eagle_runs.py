"""`paceline train eagle`, from files to a head that is measured."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.model.eagle import checkpoint as eagle_checkpoint
from tests import tiny_models
from tests.unit.training.conftest import unseen
from training import curves, eagle, eagle_start, written
from training.commands import train as commands
from training.eagle_start import EagleShape
from training.models import load_model


@pytest.fixture(autouse=True)
def _sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longest by far of a run this short."""
    monkeypatch.setattr(curves, "plot", lambda folder, points: (folder / "curves.png").touch())


def test_the_commands_from_corpus_to_an_eagle_head(
    target: Path, stories: Path, texts: Path, tmp_path: Path
) -> None:
    """A head is trained and measured; where the same stands there, it stays."""
    held = ["--target", str(target), "--held-out", str(unseen(stories)), "--prompts", "4"]
    small = ["--steps", "4", "--batch", "2", "--block-tokens", "16", "--evaluate-every", "2"]
    small += ["--corpus", str(stories)]
    head = tmp_path / "run" / "head"

    def train_eagle(*data: str, vocab: int, out: Path = tmp_path / "run") -> str:
        told = ["--fp32", *data, "--vocab", str(vocab), "--out", str(out)]
        result = CliRunner().invoke(commands, ["eagle", *held, *small, *told])
        assert result.exit_code == 0, result.output
        assert f"Written to {out / 'head'}" in result.output
        return result.output

    said = train_eagle("--written", str(texts), vocab=64)
    weights = eagle.load(head, load_model(target)).weights()
    assert weights.ids is not None
    read = [text.ids[text.prompt_tokens :] for text in written.read(texts)]
    counts = Counter(token for ids in read for token in ids)
    assert {token for token, _ in counts.most_common(8)} <= {*weights.ids.tolist()}
    share = sum(counts[token] for token in weights.ids.tolist()) / counts.total()
    assert f"The tokens that it can guess are {share:.2%} of those counted\n" in said
    assert (weights.lm_head.shape[0], weights.taps) == (64, (0, 1))

    measured = [*held, "--eagle", str(head)]
    printed = CliRunner().invoke(commands, ["measure", *measured]).output
    assert "eagle: domain, tokens a pass for K=3, 5, 7, top-1 by depth" in printed
    figures = json.loads(CliRunner().invoke(commands, ["measure", *measured, "--json"]).output)
    assert figures["heads"] == figures["drafter"] == {}
    found = figures["eagle"]["stories"]
    assert 1 <= found["tokens"]["3"] <= found["tokens"]["5"] <= found["tokens"]["7"] <= 8
    assert len(found["top_1"]) == 7

    before = [(file.name, file.stat().st_mtime_ns) for file in sorted(head.iterdir())]
    train_eagle("--written", str(texts), vocab=64)
    assert [(file.name, file.stat().st_mtime_ns) for file in sorted(head.iterdir())] == before

    for vocab, guesses in ((0, None), (50, 50)):  # of the corpus, and of all
        out = tmp_path / str(vocab)
        train_eagle(vocab=vocab, out=out)
        ids = eagle.load(out / "head", load_model(target)).ids
        assert (None if ids is None else len(ids)) == guesses


def test_drafts_need_tokens_to_guess(target: Path, stories: Path, tmp_path: Path) -> None:
    arguments = ["--target", str(target), "--corpus", str(stories), "--out", str(tmp_path / "out")]
    arguments += ["--held-out", str(unseen(stories)), "--block-tokens", "8", "--depths"]
    result = CliRunner().invoke(commands, ["eagle", *arguments, "8"])
    assert result.exit_code == 2
    assert result.output.startswith("error: --depths: must be 7 or fewer: a block has 8 tokens")
    result = CliRunner().invoke(commands, ["eagle", *arguments, "7", "--steps", "1", "--fp32"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("kind", "options", "code", "problem"),
    [
        ("llama", ["--taps", "1,2"], 2, "--taps: 2, but the target's layers are 0 to 1"),
        ("gpt2", [], 1, "config.json: num_key_value_heads: missing"),
    ],
)
def test_a_target_that_no_eagle_head_fits_is_refused(
    kind: str,
    options: Sequence[str],
    code: int,
    problem: str,
    target: Path,
    stories: Path,
    tmp_path: Path,
) -> None:
    vocab = load_model(target).config.vocab_size
    directory = Path(shutil.copytree(target, tmp_path / "model"))
    tiny_models.save(kind, directory, vocab_size=vocab)
    arguments = [
        "--target",
        str(directory),
        "--corpus",
        str(stories),
        "--out",
        str(tmp_path / "out"),
    ]
    arguments += ["--held-out", str(unseen(stories)), *options]
    result = CliRunner().invoke(commands, ["eagle", *arguments])
    assert result.exit_code == code, result.output
    assert result.output.splitlines()[-1].startswith("error: ")
    assert problem in result.output


def test_measuring_refuses_a_head_of_another_target(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    other = load_model(tiny_models.save("llama", tmp_path / "other"))
    weights = eagle_start.start(other, EagleShape(), None, seed=0)
    lm_head, config = other.get_output_embeddings().weight, other.config.to_dict()
    eagle_checkpoint.save(tmp_path / "head", weights, lm_head=lm_head, config=config)
    arguments = ["--target", str(target), "--eagle", str(tmp_path / "head")]
    result = CliRunner().invoke(commands, ["measure", *arguments, "--held-out", str(stories)])
    assert result.exit_code == 1
    assert "config.json: vocab_size: 199, but only" in result.output
