"""Models that training reads and writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig
from transformers.utils import logging

from common.errors import ModelError
from common.model.hf import ends_of
from tests import tiny_models
from tests.unit.training.full_disk import full_after
from training.eagle_start import EagleShape, check, start
from training.encode import Encoder
from training.errors import RunError
from training.models import load_draft, load_model, save_model


def test_a_saved_model_is_as_readable_as_its_config(target: Path) -> None:
    modes = {file.name: file.stat().st_mode for file in target.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_vocabularies_of_models_that_read_pictures_are_compared_too(target: Path) -> None:
    vocab = load_model(target).config.vocab_size
    for size in (vocab, vocab + 1):
        config = AutoConfig.for_model("gemma3", text_config={"vocab_size": size})
        reader = SimpleNamespace(config=config)
        if size == vocab:
            load_draft(target, reader)
        else:
            with pytest.raises(ModelError, match=f"but the target's is {size}"):
                load_draft(target, reader)


def test_models_that_see_pictures_can_teach(tmp_path: Path) -> None:
    teacher = load_model(tiny_models.save("mistral3", tmp_path))
    ids = torch.tensor([[3, 4, 5]])
    states = teacher.base_model(input_ids=ids).last_hidden_state
    logits = teacher.get_output_embeddings()(states)
    assert torch.equal(logits, teacher(input_ids=ids).logits)
    head = EagleShape(vocab=0)
    check(teacher, tmp_path, head)
    assert start(teacher, head, None, seed=1).head_size == 16


def test_saving_shows_no_bar_beside_that_of_the_run(
    target: Path, encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(target)
    logging.enable_progress_bar()  # as it is where nothing was loaded
    save_model(model, encoder.tokenizer, tmp_path / "model")
    assert capsys.readouterr().err == ""


def test_a_saved_model_has_the_tokenizer_of_its_source(target: Path, tmp_path: Path) -> None:
    source = shutil.copytree(target, tmp_path / "source")
    file = source / "tokenizer.json"
    definition = json.loads(file.read_text())
    merges = [" ".join(pair) for pair in definition["model"]["merges"]]  # as older files have them
    file.write_text(json.dumps(definition | {"model": definition["model"] | {"merges": merges}}))
    save_model(load_model(target), Encoder(source).tokenizer, tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == file.read_bytes()


def test_a_model_with_several_chat_templates_is_saved_again(target: Path, tmp_path: Path) -> None:
    tokenizer = Encoder(target).tokenizer
    for version in ("one", "two"):
        tokenizer.chat_template = {"default": "{{ messages }}", "tools": version}
        save_model(load_model(target), tokenizer, tmp_path / "model")
        assert Encoder(tmp_path / "model").tokenizer.chat_template == tokenizer.chat_template
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("most_bytes", [0, 20_000], ids=["config", "weights"])
def test_a_full_disk_is_named(
    most_bytes: int, target: Path, encoder: Encoder, tmp_path: Path
) -> None:
    model, out = load_model(target), tmp_path / "model"
    with (
        full_after(most_bytes),
        pytest.raises(RunError, match=r"/model: cannot be written: .*File too large"),
    ):
        save_model(model, encoder.tokenizer, out)
    assert not list(out.glob("*"))


def test_a_crash_while_a_model_is_written_leaves_the_one_before(
    target: Path, encoder: Encoder, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    save_model(load_model(target), encoder.tokenizer, out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    changed = load_model(target)
    torch.nn.init.zeros_(changed.get_input_embeddings().weight)
    with full_after(20_000), pytest.raises(RunError):
        save_model(changed, encoder.tokenizer, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    save_model(changed, encoder.tokenizer, out)
    assert load_model(out).get_input_embeddings().weight.abs().max() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_model_that_cannot_be_opened_is_not_said_to_be_missing(
    target: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((target / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    file.symlink_to(file)
    with pytest.raises(ModelError, match=r"weights cannot be loaded: .*Too many levels"):
        load_model(tmp_path)


def test_ids_that_a_model_does_not_have_end_nothing(target: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(target, tmp_path / "target")
    file = directory / "generation_config.json"
    settings = json.loads(file.read_text()) | {"eos_token_id": [-1, 3, 999_999]}
    file.write_text(json.dumps(settings))
    assert ends_of(load_model(directory)) == (3,)
