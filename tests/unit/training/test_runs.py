"""Runs from files to files: every kind ends in something usable, and goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from paceline.cli._app import app as paceline_app
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from common.errors import ModelError
from common.model.medusa import checkpoint as medusa_checkpoint
from tests import tiny_models
from tests.unit.training.conftest import SHAPE, unseen
from training import corpus, curves, head_runs, held_out, inputs, output, runs, step_time
from training.commands import train as commands
from training.corpus import Document
from training.curves import plot
from training.eagle_start import EagleShape
from training.encode import Encoder
from training.errors import DataError, RunError
from training.folder import RunFolder, State
from training.heads import Heads
from training.loop import LoopConfig, decayed, train
from training.models import load_model

HOW = runs.How(seed=3, block_tokens=16, device="cpu", half=False)
LOOP = LoopConfig(
    steps=12, batch=4, learning_rate=5e-3, warmup_share=0.1, log_every=1, evaluate_every=4
)


@pytest.fixture(autouse=True)
def _sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing, and what the target writes to measure by, take longest of a run this short."""
    monkeypatch.setattr(curves, "plot", lambda folder, points: (folder / "curves.png").touch())
    monkeypatch.setattr(held_out, "_NEW_TOKENS", 12)


class Killed(Exception):
    """Stands for the end of a process."""


def _silent(done: int, total: int, line: str = "") -> None:
    pass


def _dying_at(step: int) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, line: str = "") -> None:
        if done == step:
            raise Killed

    return progress


def _distill(
    target: Path, draft: Path, documents: Path, out: Path, progress: Any = _silent
) -> None:
    """Trains a drafter further, on one file and measured on it."""
    runs.distill(
        target=target,
        draft=draft,
        fresh=False,
        labels="target",
        data=runs.Data(corpora=[documents], held_out=[unseen(documents)]),
        prompts=4,
        out=out,
        loop=LOOP,
        how=HOW,
        progress=progress,
    )


def _curve(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "curves.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@dataclass
class Setting:
    """A kind of run and where it leaves its curves."""

    kind: str
    run: Callable[[Path, Any], State]
    folders: Sequence[str]


@pytest.fixture
def setting(
    request: pytest.FixtureRequest, target: Path, stories: Path, talks: Path, texts: Path
) -> Setting:
    held_out = [unseen(stories), unseen(talks)]
    data = runs.Data(corpora=[stories], written=[texts], share=0.5, held_out=held_out)

    def pretrain(out: Path, progress: Any) -> State:
        corpora = [stories, talks]
        return runs.pretrain(
            corpora=corpora, out=out, shape=SHAPE, loop=LOOP, how=HOW, progress=progress
        )

    def distill(out: Path, progress: Any) -> State:
        return runs.distill(
            target=target,
            draft=target,
            fresh=True,
            labels="target",
            data=data,
            prompts=4,
            out=out,
            loop=LOOP,
            how=HOW,
            progress=progress,
        )

    def medusa(out: Path, progress: Any) -> State:
        return head_runs.medusa(
            target=target,
            shape=head_runs.HeadShape(num_heads=2),
            data=data,
            prompts=4,
            out=out,
            frozen=LOOP,
            joint=head_runs.joint_loop(LOOP, 8, 1e-3),
            how=HOW,
            progress=progress,
        )

    def eagle(out: Path, progress: Any) -> State:
        return head_runs.eagle(
            target=target,
            shape=EagleShape(vocab=100),
            depths=3,
            data=data,
            prompts=4,
            out=out,
            loop=LOOP,
            how=HOW,
            progress=progress,
            say=lambda line: None,
        )

    return {
        "pretrain": Setting("pretrain", pretrain, ["."]),
        "distill": Setting("distill", distill, ["."]),
        "medusa": Setting("medusa", medusa, ["frozen", "joint"]),
        "eagle": Setting("eagle", eagle, ["."]),
    }[request.param]


KINDS = pytest.mark.parametrize(
    "setting", ["pretrain", "distill", "medusa", "eagle"], indirect=True
)


@KINDS
def test_a_killed_run_goes_on_to_the_same_losses(setting: Setting, tmp_path: Path) -> None:
    best = setting.run(tmp_path / "whole", _silent)
    for death in (2, 6, 11):
        with pytest.raises(Killed):
            setting.run(tmp_path / "killed", _dying_at(death))
    assert setting.run(tmp_path / "killed", _silent) == best
    for folder in setting.folders:
        whole = _curve(tmp_path / "whole" / folder)
        assert _curve(tmp_path / "killed" / folder) == whole
        assert len([point for point in whole if "loss" in point]) in (8, 12)
        picture = tmp_path / "killed" / folder / "curves.png"
        assert picture.exists()
        plot(picture.parent, whole)
        assert picture.stat().st_size > 1000


def test_a_drafter_with_dropout_goes_on_to_the_same_losses(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    vocab = load_model(target).config.vocab_size
    draft = tiny_models.save("gpt2", tmp_path / "draft", vocab_size=vocab)
    assert load_model(draft).config.resid_pdrop > 0

    distill = partial(_distill, target, draft, stories)
    distill(tmp_path / "whole")
    with pytest.raises(Killed):
        distill(tmp_path / "killed", _dying_at(6))
    distill(tmp_path / "killed")
    assert _curve(tmp_path / "killed") == _curve(tmp_path / "whole")


@pytest.mark.parametrize("setting", ["pretrain"], indirect=True)
def test_a_checkpoint_that_a_crash_left_half_renamed_counts(
    setting: Setting, tmp_path: Path
) -> None:
    setting.run(tmp_path / "whole", _silent)
    with pytest.raises(Killed):
        setting.run(tmp_path / "killed", _dying_at(6))
    (tmp_path / "killed" / "checkpoint").rename(tmp_path / "killed" / "checkpoint.old")
    steps: list[int] = []
    setting.run(tmp_path / "killed", lambda done, total, line="": steps.append(done))
    assert steps[0] == 5
    assert _curve(tmp_path / "killed") == _curve(tmp_path / "whole")


@KINDS
def test_losses_fall(setting: Setting, tmp_path: Path) -> None:
    setting.run(tmp_path, _silent)
    losses = [point["loss"] for point in _curve(tmp_path / setting.folders[0]) if "loss" in point]
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("setting", ["pretrain"], indirect=True)
def test_a_folder_of_another_run_is_refused(
    setting: Setting, tmp_path: Path, stories: Path, talks: Path
) -> None:
    setting.run(tmp_path, _silent)
    with pytest.raises(RunError, match="holds a run with seed 3, not 4: give another --out"):
        runs.pretrain(
            corpora=[stories, talks],
            out=tmp_path,
            shape=SHAPE,
            loop=LOOP,
            how=runs.How(seed=4, block_tokens=16, half=False),
            progress=_silent,
        )


@KINDS
def test_a_run_that_never_began_binds_nobody(setting: Setting, tmp_path: Path) -> None:
    folder = tmp_path / setting.folders[0]
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text('{"kind": "another"}')
    with pytest.raises(Killed):
        setting.run(tmp_path, _dying_at(1))
    facts = json.loads((folder / "run.json").read_text())
    assert (facts["kind"], facts["seed"]) == (setting.kind, 3)


@KINDS
def test_a_run_is_bound_before_its_first_checkpoint(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        setting.run(tmp_path, _dying_at(2))
    folder = tmp_path / setting.folders[0]
    assert not (folder / "checkpoint").exists()
    with pytest.raises(RunError, match="holds a run with"):
        RunFolder(folder, {"kind": "another"})


def test_a_corpus_that_was_not_there_may_be_corrected(
    stories: Path, talks: Path, tmp_path: Path
) -> None:
    def pretrain(corpus: Path, vocab: int, block_tokens: int = 16) -> None:
        runs.pretrain(
            corpora=[corpus],
            out=tmp_path,
            shape=replace(SHAPE, vocab=vocab),
            loop=replace(LOOP, steps=1),
            how=replace(HOW, block_tokens=block_tokens),
            progress=_silent,
        )

    with pytest.raises(DataError, match=r"typo\.txt: cannot be read"):
        pretrain(tmp_path / "typo.txt", 320)
    with pytest.raises(DataError, match=r"shorter than a block of 99999"):
        pretrain(talks, 280, 99999)
    assert len(Encoder(tmp_path / "model").tokenizer) == 280
    pretrain(stories, 300)
    assert len(Encoder(tmp_path / "model").tokenizer) == 300, "not that of the run before"
    with pytest.raises(RunError, match="holds a run with corpora"):
        pretrain(talks, 300)


@pytest.mark.parametrize("setting", ["distill", "medusa", "eagle"], indirect=True)
def test_texts_of_another_model_are_told_of_before_the_target_writes(
    setting: Setting, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise DataError("another model's")

    monkeypatch.setattr(runs.written, "check_origin", refused)
    monkeypatch.setattr(runs.held_out, "load", lambda *_: pytest.fail("it writes"))
    with pytest.raises(DataError, match="another model's"):
        setting.run(tmp_path, _silent)


def test_of_two_runs_that_begin_at_once_the_second_is_refused(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, {"seed": 1}), RunFolder(tmp_path, {"seed": 2})
    first.resume(nn.Linear(1, 1), None, None)
    with pytest.raises(RunError, match="holds a run with seed 1, not 2"):
        second.resume(nn.Linear(1, 1), None, None)


@pytest.mark.parametrize("setting", ["pretrain"], indirect=True)
def test_a_damaged_checkpoint_is_named(setting: Setting, tmp_path: Path) -> None:
    setting.run(tmp_path, _silent)
    (tmp_path / "checkpoint" / "optimizer.pt").write_bytes(b"not tensors")
    with pytest.raises(RunError, match="checkpoint: cannot go on from it"):
        setting.run(tmp_path, _silent)


@pytest.mark.parametrize("changed", ["stories.jsonl", "draft/model.safetensors"])
def test_a_run_does_not_go_on_with_other_files(
    changed: str, target: Path, stories: Path, tmp_path: Path
) -> None:
    documents, draft = Path(shutil.copy(stories, tmp_path)), tmp_path / "draft"
    shutil.copytree(target, draft)
    distill = partial(_distill, target, draft, documents, tmp_path / "out")
    with pytest.raises(Killed):
        distill(_dying_at(6))
    file, named = tmp_path / changed, changed.partition("/")[0]
    content = file.read_bytes()
    file.write_bytes(content.replace(b"cat", b"cow") if file == documents else content[::-1])
    with pytest.raises(
        RunError, match=rf"out holds a run that began with something else in .*/{named}: give an"
    ):
        distill()
    file.write_bytes(content)
    distill()


@pytest.mark.parametrize("setting", ["distill"], indirect=True)
def test_a_run_of_an_older_version_goes_on(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        setting.run(tmp_path, _dying_at(6))
    facts = json.loads((tmp_path / "run.json").read_text())
    del facts["inputs"]
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert setting.run(tmp_path, _silent).step == LOOP.steps


def test_a_large_file_is_looked_at_in_pieces_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(inputs, "_PIECE_BYTES", 10)
    file = tmp_path / "large"
    whole = bytes(10_000)
    found = set()
    for content in (whole, b"1" + whole[1:], whole[:-1] + b"1", whole + b"0"):
        file.write_bytes(content)
        found |= {*inputs.contents([file]).values()}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("name", "change", "counts"),
    [
        ("chat_template.jinja", "{{ messages[0].content }}", True),
        ("tokenizer_config.json", '{"eos_token": "other"}', True),
        ("special_tokens_map.json", '{"bos_token": "other"}', True),
        ("generation_config.json", '{"eos_token_id": [1, 2]}', True),
        ("generation_config.json", '{"eos_token_id": 3, "temperature": 0.3}', False),
        ("README.md", "A model.", False),
    ],
)
def test_of_a_model_what_decides_ids_counts(
    name: str, change: str, counts: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3}')
    before = inputs.of_model(tmp_path)
    (tmp_path / name).write_text(change)
    assert (inputs.of_model(tmp_path) != before) == counts


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="no names of open pipes")
def test_a_corpus_out_of_a_pipe_is_left_to_be_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"The cat.")
    os.close(writer)
    pipe = Path(f"/dev/fd/{reader}")
    try:
        assert inputs.contents([pipe]) == {}
        assert corpus.read([pipe]) == [Document(text="The cat.")]
    finally:
        os.close(reader)


def test_what_is_trained_on_is_not_held_out(stories: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(stories, tmp_path / "dev.jsonl"))
    with pytest.raises(DataError, match=r"dev\.jsonl: held out, but --corpus has it"):
        runs.Data(corpora=[stories], held_out=[copy])


def test_a_target_whose_logits_are_made_otherwise_is_refused(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    vocab = load_model(target).config.vocab_size
    ours = tiny_models.ARCHITECTURES["llama"]
    config = AutoConfig.for_model("hyperclovax", **{**ours, "vocab_size": vocab})
    config.logits_scaling = 2.0
    other = Path(shutil.copytree(target, tmp_path / "other"))
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    with pytest.raises(ModelError, match="other: its logits are not what"):
        _distill(other, target, stories, tmp_path / "out")


def test_a_target_that_does_not_show_its_last_states_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "llama4_text", **tiny_models.ARCHITECTURES["llama"], num_local_experts=2, head_dim=16
    )
    with pytest.raises(ModelError, match="model: Llama4ForCausalLM does not show its last states"):
        output.check(AutoModelForCausalLM.from_config(config), tmp_path / "model")


def test_a_device_that_is_not_there_is_said(stories: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    arguments = ["--corpus", str(stories), "--out", str(tmp_path / "out"), "--device", "cuda"]
    result = CliRunner().invoke(commands, ["pretrain", *arguments])
    assert result.exit_code == 1
    assert result.output.startswith("error: device cuda: ")


def test_a_seed_is_one_that_generators_take(stories: Path, tmp_path: Path) -> None:
    arguments = ["--corpus", str(stories), "--out", str(tmp_path), "--seed", "99999999999999"]
    result = CliRunner().invoke(commands, ["pretrain", *arguments])
    assert result.exit_code == 2
    assert "--seed" in result.output


def test_heads_need_tokens_to_guess(target: Path, stories: Path, tmp_path: Path) -> None:
    arguments = ["--target", str(target), "--corpus", str(stories), "--out", str(tmp_path / "out")]
    arguments += ["--held-out", str(unseen(stories)), "--block-tokens", "8", "--num-heads", "7"]
    result = CliRunner().invoke(commands, ["medusa", *arguments])
    assert result.exit_code == 2
    assert result.output.startswith("error: --num-heads: must be 6 or fewer: a block has 8 tokens")


@pytest.mark.parametrize("setting", ["medusa"], indirect=True)
def test_joint_training_leaves_a_model_and_heads_that_fit_it(
    setting: Setting, tmp_path: Path, target: Path
) -> None:
    setting.run(tmp_path, _silent)
    joint = load_model(tmp_path / "model")
    lm_head = joint.get_output_embeddings().weight
    heads = medusa_checkpoint.load(tmp_path / "heads", lm_head=lm_head)
    assert heads.num_heads == 2
    last = load_file(tmp_path / "joint" / "checkpoint" / "weights.safetensors")
    before = load_model(target).get_input_embeddings().weight.float()
    assert not torch.equal(last["base.model.embed_tokens.weight"], before)


def test_a_drafter_of_another_vocabulary_is_refused(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    draft = tiny_models.save("llama", tmp_path / "draft")
    with pytest.raises(ModelError, match=r"vocabulary 199, but the target's is \d+"):
        _distill(target, draft, stories, tmp_path / "out")


def test_measuring_refuses_a_drafter_of_another_vocabulary(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    draft = tiny_models.save("llama", tmp_path / "draft")
    arguments = ["--target", str(target), "--draft", str(draft), "--held-out", str(stories)]
    result = CliRunner().invoke(commands, ["measure", *arguments])
    assert result.exit_code == 1
    assert "error: " in result.output
    assert "vocabulary 199, but the target's is" in result.output


def test_a_file_that_is_not_there_is_told_before_all_else(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    arguments = ["eagle", "--target", str(target), "--out", str(tmp_path / "out")]
    good = {"--corpus": stories, "--held-out": stories, "--written": stories}
    for name in good:
        given = {**good, name: tmp_path / "typo"}
        files = [word for each, file in given.items() for word in (each, str(file))]
        result = CliRunner().invoke(commands, [*arguments, *files])
        assert result.exit_code == 2
        assert f"Invalid value for '{name}'" in result.output
        assert not (tmp_path / "out").exists()


def test_heads_to_be_measured_are_read_before_the_target_writes(
    target: Path, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes longest."""
    monkeypatch.setattr(held_out, "load", lambda *arguments: pytest.fail("written already"))
    arguments = ["--target", str(target), "--heads", str(tmp_path / "typo")]
    result = CliRunner().invoke(commands, ["measure", *arguments, "--held-out", str(stories)])
    assert result.exit_code == 1
    assert "typo: no such file or directory" in result.output


def test_measuring_needs_something_to_measure(target: Path, stories: Path) -> None:
    arguments = ["--target", str(target), "--held-out", str(stories)]
    result = CliRunner().invoke(commands, ["measure", *arguments])
    assert result.exit_code == 2
    assert "give --draft, --heads, --eagle or several" in result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--hidden", "100", "--heads", "3"], "--hidden: must be a multiple of 6"),
        (["--hidden", "30", "--heads", "2"], "--hidden: must be a multiple of 4"),
        (["--hidden", "48", "--heads", "6", "--kv-heads", "4"], "--kv-heads: must divide the 6"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_before_all_else(
    options: Sequence[str], problem: str, stories: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["pretrain", "--corpus", str(stories), "--out", str(out), *options]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {problem}")
    assert not out.exists()


@pytest.mark.parametrize("command", ["pretrain", "write", "distill", "medusa", "eagle"])
def test_a_folder_that_cannot_be_made_is_named(
    command: str, target: Path, stories: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    arguments = ["--corpus", str(stories), "--out", str(tmp_path / "file" / "below" / "out")]
    if command != "pretrain":
        arguments += ["--target", str(target)]
    if command in ("distill", "medusa", "eagle"):
        arguments += ["--held-out", str(unseen(stories))]
    if command == "distill":
        arguments += ["--draft", str(target)]
    result = CliRunner().invoke(commands, [command, *arguments])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert "below" in result.output
    assert "cannot be made: Not a directory" in result.output


def test_the_checkpoint_with_the_best_score_is_kept(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    class Shrinking:
        """A weight that falls, and is best half-way."""

        def __init__(self) -> None:
            self.module: nn.Module = nn.Linear(1, 1, bias=False)
            self._weight = next(self.module.parameters())
            nn.init.constant_(self._weight, 1.0)

        def groups(self, learning_rate: float) -> list[dict[str, Any]]:
            return decayed(self.module, learning_rate)

        def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
            self._weight.sum().backward()
            return {"loss": self._weight.item()}

        def evaluate(self) -> dict[str, float]:
            return {"score": -abs(self._weight.item() - 0.5)}

    class Nothing:
        def batch(self, step: int, size: int) -> Tensor:
            return torch.zeros(size, 1)

    task, folder = Shrinking(), RunFolder(tmp_path, {})
    config = LoopConfig(steps=20, learning_rate=0.1, weight_decay=0.0, evaluate_every=1)
    train(task, Nothing(), folder, accelerator, config)
    scores = [point["score"] for point in _curve(tmp_path) if "score" in point]
    assert folder.state.best_score == max(scores)
    assert 0 < folder.state.best_step < 20
    assert task.evaluate()["score"] == max(scores)


def test_the_commands_from_corpus_to_tree(
    target: Path, stories: Path, texts: Path, tmp_path: Path
) -> None:
    """Heads are trained, their tree chosen from given step times, and both measured."""
    held = ["--target", str(target), "--held-out", str(unseen(stories)), "--prompts", "4"]
    small = ["--steps", "4", "--batch", "2", "--block-tokens", "16", "--evaluate-every", "2"]
    data = ["--corpus", str(stories), "--written", str(texts)]
    out = tmp_path / "run"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    run("medusa", *held, *data, *small, "--num-heads", "2", "--out", str(out), "--fp32")
    printed = run("measure", *held, "--heads", str(out / "heads"))
    assert "no tree yet: `paceline train tree` chooses one" in printed
    printed = run("tree", *held, "--heads", str(out / "heads"), "--step-ms", "1:1,9:1.01")
    assert "chosen" in printed
    facts = medusa_checkpoint.read_facts(out / "heads")
    assert facts["tree"] is not None
    printed = run("measure", *held, "--heads", str(out / "heads"), "--draft", str(target))
    assert f"the tree of {len(facts['tree'])} nodes" in printed
    assert "stories" in printed
    found = run("measure", *held, "--heads", str(out / "heads"), "--draft", str(target), "--json")
    figures = json.loads(found)
    assert 0 < figures["drafter"]["stories"]["agreement"] <= 1
    assert figures["heads"]["stories"]["nodes"] == len(facts["tree"])
    printed = run("medusa", *held, *data, *small, "--num-heads", "2", "--out", str(out), "--fp32")
    assert "The best weights are " in printed
    assert medusa_checkpoint.read_facts(out / "heads") == facts, "the tree stays"


@pytest.mark.parametrize(
    "name", ["pretrain", "write", "distill", "medusa", "tree", "eagle", "measure"]
)
def test_every_command_shows_an_example(name: str) -> None:
    result = CliRunner().invoke(paceline_app, ["train", name, "--help"])
    assert result.exit_code == 0
    assert f"Example: paceline train {name}" in result.output


def test_a_command_ends_bad_data_with_one_line(target: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    arguments = ["--target", str(target), "--corpus", str(empty), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(commands, ["write", *arguments])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("error: ")
    assert "empty.txt: empty" in result.output


def test_step_times_cover_the_rows_asked_for(target: Path) -> None:
    lm_head = load_model(target).get_output_embeddings().weight
    heads = Heads(lm_head, num_heads=2, num_layers=1, own_lm=True)
    found = step_time.measure(
        target,
        heads.weights(),
        lambda nodes: tuple((rank,) for rank in range(nodes)),
        device="cpu",
        rows=(1, 3),
        passes=2,
    )
    assert found.keys() == {1, 3}
    assert all(ms > 0 for ms in found.values())
