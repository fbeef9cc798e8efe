"""Losses and gradients taken piece by piece equal those of the whole at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from training import heads as head_training
from training import loss as losses
from training.heads import Heads
from training.loss import distil_backward, soft_cross_entropy
from training.output import OutputLayer

BLOCKS, LENGTH, HIDDEN, VOCAB, HEADS = 5, 7, 8, 30, 3


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


IDS = torch.randint(VOCAB, (BLOCKS, LENGTH), generator=torch.Generator().manual_seed(6))
STATES, TAUGHT = _normal(BLOCKS, LENGTH, HIDDEN, seed=0), _normal(BLOCKS, LENGTH, HIDDEN, seed=1)
LM_HEAD, TEACHER_LM = _normal(VOCAB, HIDDEN, seed=2), _normal(VOCAB, HIDDEN, seed=3)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks at once, so that the last part is a smaller one."""
    monkeypatch.setattr(losses, "CHUNK_ROWS", 2 * LENGTH)


def test_the_loss_and_its_gradient_are_cross_entropys() -> None:
    logits = _normal(6, VOCAB, seed=4).requires_grad_(True)
    same = logits.detach().clone().requires_grad_(True)
    labels = _normal(6, VOCAB, seed=5).softmax(-1)
    found, wanted = soft_cross_entropy(logits, labels), F.cross_entropy(same, labels)
    (3 * found).backward()
    (3 * wanted).backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(logits.grad, same.grad)


def test_distillation_in_parts_equals_the_whole(accelerator: Accelerator) -> None:
    leaf, weight = STATES.clone().requires_grad_(True), LM_HEAD.clone().requires_grad_(True)
    found = distil_backward(leaf, OutputLayer(weight), TAUGHT, OutputLayer(TEACHER_LM), accelerator)
    whole, same = STATES.clone().requires_grad_(True), LM_HEAD.clone().requires_grad_(True)
    labels = (TAUGHT @ TEACHER_LM.T).softmax(-1)
    wanted = F.cross_entropy((whole @ same.T).flatten(0, 1), labels.flatten(0, 1))
    wanted.backward()
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(leaf.grad, whole.grad)
    torch.testing.assert_close(weight.grad, same.grad)


@pytest.mark.parametrize("sees_token", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_heads_one_at_a_time_equal_all_together(
    own: bool, sees_token: bool, accelerator: Accelerator
) -> None:
    scales = [1.0, 0.8, 0.64]

    def made() -> Heads:
        heads = Heads(LM_HEAD, num_heads=HEADS, num_layers=2, own_lm=own, sees_token=sees_token)
        for number, parameter in enumerate(heads.parameters()):
            parameter.data.add_(_normal(*parameter.shape, seed=10 + number), alpha=0.1)
        return heads

    heads, leaf = made(), STATES.clone().requires_grad_(True)
    found = head_training.backward(
        heads, IDS, leaf, LM_HEAD, TAUGHT, OutputLayer(TEACHER_LM), scales, accelerator
    )

    same, whole = made(), STATES.clone().requires_grad_(True)
    labels = (TAUGHT @ TEACHER_LM.T).softmax(-1)
    single = [
        F.cross_entropy(
            same.logits(
                head, whole[:, : LENGTH - 1 - head], IDS[:, 1 : LENGTH - head], LM_HEAD
            ).flatten(0, 1),
            labels[:, head + 1 :].flatten(0, 1),
        )
        for head in range(HEADS)
    ]
    sum(s * one for s, one in zip(scales, single, strict=True)).backward()  # type: ignore[union-attr]
    assert found == pytest.approx([one.item() for one in single], rel=1e-5)
    torch.testing.assert_close(leaf.grad, whole.grad)
    for mine, theirs in zip(heads.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_fresh_heads_are_the_base_models_output_layer() -> None:
    heads = Heads(LM_HEAD, num_heads=HEADS, num_layers=1, own_lm=True)
    for head in range(HEADS):
        torch.testing.assert_close(heads.logits(head, STATES, IDS, LM_HEAD), STATES @ LM_HEAD.T)
