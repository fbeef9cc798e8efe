from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.roofline import demand
from bench.widened_model import write
from common.errors import ModelError
from tests import tiny_models

PROMPT = torch.tensor([[1, 17, 60, 5, 9]])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_wider_model_writes_the_same_text(kind: str, tmp_path: Path) -> None:
    narrow, wide = tiny_models.save(kind, tmp_path / "narrow"), tmp_path / "wide"
    write(narrow, wide, 8)
    texts, parameters = [], []
    for directory in (narrow, wide):
        model = AutoModelForCausalLM.from_pretrained(directory)
        texts.append(model.generate(PROMPT, do_sample=False, max_new_tokens=40).tolist())
        parameters.append(model.num_parameters())
    assert texts[0] == texts[1]
    layers, hidden, inner = 2, 48, 96
    assert parameters[1] - parameters[0] == layers * 3 * hidden * 7 * inner
    assert demand(wide, "auto").weight_bytes > demand(narrow, "auto").weight_bytes


def test_models_of_other_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must have an intermediate_size and no mlp_bias"):
        write(tiny_models.save("gpt2", tmp_path / "gpt2"), tmp_path / "wide", 2)
    with pytest.raises(ModelError, match=r"weights \*\.mlp\.gate_proj\.weight in each layer"):
        write(tiny_models.save("phi3", tmp_path / "phi3"), tmp_path / "wide", 2)
    assert not (tmp_path / "wide").exists()


def test_a_model_is_not_written_over_itself(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="another directory"):
        write(tiny_models.save("llama", tmp_path), tmp_path, 2)


@pytest.mark.parametrize("held", ["[]", "{", None])
def test_a_configuration_that_is_none_is_told_of(held: str | None, tmp_path: Path) -> None:
    tmp_path.joinpath("narrow").mkdir()
    if held is not None:
        (tmp_path / "narrow" / "config.json").write_text(held)
    with pytest.raises(ModelError, match=r"config\.json"):
        write(tmp_path / "narrow", tmp_path / "wide", 2)
