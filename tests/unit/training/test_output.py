"""Labels are the model's own distributions, whatever it does with its last states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM

from common.errors import ModelError
from tests.tiny_models import ARCHITECTURES
from training import output
from training.loss import distil_backward, distributions
from training.output import OutputLayer


def _model(kind: str, **changes: Any) -> Any:
    settings = {**ARCHITECTURES.get(kind, ARCHITECTURES["llama"]), **changes}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).eval()
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        torch.nn.init.normal_(model.get_output_embeddings().bias, std=2)
    return model


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("phi", {}),
        ("cohere", {"logit_scale": 0.0625}),
        ("granite", {"logits_scaling": 8.0}),
        ("gemma2", {"final_logit_softcapping": 3.0}),
        ("opt", {}),
    ],
)
@torch.no_grad()
def test_distributions_are_the_models(
    kind: str, changes: dict[str, float], accelerator: Accelerator
) -> None:
    model, ids = _model(kind, **changes), torch.randint(3, 199, (2, 9))
    states = model.base_model(input_ids=ids).last_hidden_state
    found = distributions(states, OutputLayer.of(model), accelerator)
    torch.testing.assert_close(found, model(input_ids=ids).logits.softmax(-1))
    output.check(model.bfloat16(), Path(kind))


def test_a_model_that_does_something_else_is_refused() -> None:
    model = _model("hyperclovax", logits_scaling=2.0)  # multiplies by what others divide by
    with pytest.raises(ModelError, match=r"^there: its logits are not what its output matrix"):
        output.check(model, Path("there"))


def test_a_model_whose_logits_are_no_numbers_is_refused() -> None:
    model = _model("llama")
    torch.nn.init.constant_(model.get_output_embeddings().weight, float("nan"))
    with pytest.raises(ModelError, match=r"^there: its logits are not what"):
        output.check(model, Path("there"))


def test_a_learner_learns_its_bias(accelerator: Accelerator) -> None:
    model, ids = _model("phi"), torch.randint(3, 199, (1, 9))
    hidden = model.base_model(input_ids=ids).last_hidden_state.detach().requires_grad_(True)
    layer = OutputLayer.of(model)
    teacher = OutputLayer(torch.randn_like(layer.weight))
    distil_backward(hidden, layer, hidden.detach(), teacher, accelerator)
    assert layer.bias is not None
    assert layer.bias.grad.abs().max() > 0
