"""EAGLE heads are measured by what they would draft, and learn from the target's distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from tests.unit.training.eagle_heads import ids_of, made
from training import acceptance, eagle
from training import loss as losses
from training.models import load_model
from training.written import Written

DEPTHS = 3


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return load_model(target, float32=True).requires_grad_(False)


def _texts() -> list[Written]:
    """Of several lengths, more than are read at once."""
    lengths = [(6 + number % 5, 2 + number % 3) for number in range(18)]
    return [
        Written(ids_of(length, seed=number).flatten().tolist(), prompt)
        for number, (length, prompt) in enumerate(lengths)
    ]


@pytest.mark.parametrize("vocab", [0, 100])
def test_ranks_are_those_of_drafts_along_the_text(vocab: int, model: Any) -> None:
    net, texts = made(model, vocab), _texts()
    guessed = list(range(model.config.vocab_size)) if net.ids is None else net.ids.tolist()
    found = eagle.ranks(model, net, texts, DEPTHS)
    unknown = 0
    for text, rows in zip(texts, found, strict=True):
        ids = torch.tensor([text.ids])
        features, _, embeddings = eagle.read(model, net.taps, ids)
        assert len(rows) == len(text.ids) - text.prompt_tokens
        with torch.no_grad():
            logits = list(net.depths(features, ids, embeddings, min(DEPTHS, len(text.ids) - 1)))
        for place, row in enumerate(rows, start=text.prompt_tokens - 1):
            for depth, rank in enumerate(row):
                coming = place + 2 + depth
                if coming >= len(text.ids):
                    assert rank == -1
                elif text.ids[coming] not in guessed:
                    unknown += 1
                    assert rank == len(guessed)
                else:
                    line = logits[depth][0, place]
                    assert rank == (line > line[guessed.index(text.ids[coming])]).sum()
    assert (unknown > 0) == (vocab > 0)


def test_a_greedy_draft_is_accepted_as_far_as_ranks_say(model: Any) -> None:
    """Text that a head drafted itself is right at every depth; one more token gives the rest."""
    net = made(model)
    assert net.ids is not None
    ids = [5, 9]
    prompt = torch.tensor([ids])
    for depth in range(DEPTHS):
        # The states behind the position are not read, so any tokens stand there.
        padded = torch.cat((prompt, torch.zeros(1, depth + 1, dtype=torch.int64)), dim=1)
        features, _, embeddings = eagle.read(model, net.taps, padded)
        with torch.no_grad():
            *_, last = net.depths(features, padded, embeddings, depth + 1)
        guess = int(net.ids[last[0, 0].argmax()])
        prompt = torch.cat((prompt, torch.tensor([[guess]])), dim=1)
    text = Written(prompt[0].tolist(), 1)
    (rows,) = eagle.ranks(model, net, [text], DEPTHS)
    assert rows[0] == [0] * DEPTHS
    assert acceptance.tree_tokens([rows[:1]], eagle.chain(DEPTHS)) == 1


def test_chains_of_so_many_tokens_are_paths_of_first_ranks() -> None:
    found = [[[0, 0, 4], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, -1], [0, -1, -1], [-1, -1, -1]]]
    assert acceptance.tree_tokens(found, eagle.chain(1)) == pytest.approx(7 / 4)
    assert acceptance.tree_tokens(found, eagle.chain(3)) == pytest.approx(7 / 2)
    assert acceptance.accuracies(found, 1)[:, 0].tolist() == pytest.approx([5 / 6, 4 / 5, 3 / 4])


def test_domains_weigh_the_same_in_what_chooses_a_checkpoint() -> None:
    found = {"a": [[[0, 0]] * 6], "b": [[[0, 1]]]}
    assert acceptance.figures(found, eagle.chain(2), "depth") == pytest.approx(
        {"score": 2.0, "tokens a": 3.0, "tokens b": 1.0, "top-1 depth 0": 1, "top-1 depth 1": 0.5}
    )


def test_the_loss_is_cross_entropy_with_the_targets_distributions(
    model: Any, accelerator: Accelerator
) -> None:
    """Depth j of position i learns what the target says where it has read up to i + 1 + j."""
    net, batch = made(model), ids_of(8, seed=11, rows=2)
    assert net.ids is not None
    task = eagle.EagleTraining(model, net, DEPTHS, [], accelerator)
    found = task.losses(batch, 0.0)
    chances = model(input_ids=batch).logits.softmax(-1)
    features, _, embeddings = eagle.read(model, net.taps, batch)
    total = 0.0
    for depth, logits in enumerate(net.depths(features, batch, embeddings, DEPTHS)):
        logs, terms = logits.log_softmax(-1), []
        for line in range(2):
            for place in range(logits.shape[1]):
                label = chances[line, place + 1 + depth, net.ids]
                terms.append(-(label * logs[line, place]).sum().item())
        loss = sum(terms) / len(terms)
        assert found[f"loss depth {depth}"] == pytest.approx(loss, rel=1e-4)
        total += 0.8**depth * loss
    assert found["loss"] == pytest.approx(total, rel=1e-4)
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize("vocab", [0, 100])
def test_losses_in_parts_equal_the_whole(
    vocab: int, model: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks at once, so that the last part is a smaller one."""
    batch, parts, found = ids_of(8, seed=13, rows=5), [], []
    for rows in (5 * 8, 2 * 8):
        monkeypatch.setattr(losses, "CHUNK_ROWS", rows)
        net = made(model, vocab)
        task = eagle.EagleTraining(model, net, DEPTHS, [], accelerator)
        found.append(task.losses(batch, 0.0))
        parts.append(list(net.parameters()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    for whole, piecewise in zip(*parts, strict=True):
        torch.testing.assert_close(whole.grad, piecewise.grad)


def test_ranks_are_by_float32_logits_in_mixed_precision_too(target: Path) -> None:
    """As a checkpoint is chosen: in fewer bits tokens tie."""
    model = load_model(target)
    net, texts = made(model), _texts()
    wanted = eagle.ranks(model, net, texts, DEPTHS)
    with torch.autocast("cpu", torch.bfloat16):
        assert eagle.ranks(model, net, texts, DEPTHS) == wanted


@pytest.mark.parametrize("half", [True, False])
def test_a_head_over_a_bfloat16_target_computes_the_same(half: bool, target: Path) -> None:
    """As it is trained, in mixed precision; and as it is measured, in float32."""
    model, text = load_model(target), ids_of(9, seed=12)
    net = made(model)
    features, _, embeddings = eagle.read(model, net.taps, text)
    assert features.dtype == torch.bfloat16
    wanted = list(net.depths(features.float(), text, embeddings.float(), DEPTHS))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = list(net.depths(features, text, embeddings, DEPTHS))
    for one, other in zip(found, wanted, strict=True):
        tolerance = 0.1 if half else 1e-5
        torch.testing.assert_close(one.float(), other, rtol=tolerance, atol=tolerance)
