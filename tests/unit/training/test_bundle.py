"""The bundled heads fit the bundled target, and guess it about as well as their card says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.errors import ModelError
from common.model.medusa import checkpoint as medusa_checkpoint
from training import acceptance, corpus
from training.encode import Encoder
from training.heads import Heads
from training.models import load_model
from training.written import WriteConfig, continued

OPENINGS = Path("training/openings/story.jsonl")


@pytest.fixture
def demo_medusa(demo_target: Path) -> Path:
    return demo_target.parent / "medusa"


def test_the_bundled_heads_guess_the_bundled_target(demo_target: Path, demo_medusa: Path) -> None:
    model, encoder = load_model(demo_target), Encoder(demo_target)
    lm_head = model.get_output_embeddings().weight
    openings = corpus.read([demo_target.parents[2] / OPENINGS])[:12]
    prompts = [encoder.text(opening.text) for opening in openings]
    texts = continued(model, encoder, prompts, WriteConfig(max_new_tokens=32), greedy=True)
    weights = medusa_checkpoint.load(demo_medusa, lm_head=lm_head)
    found = acceptance.ranks(model, Heads.of(weights, lm_head), texts, lm_head)
    # The card has 0.82 and, with five nodes, 3.16 over more and longer texts of this domain.
    assert acceptance.accuracies(found, 1)[0, 0] > 0.5
    assert weights.tree is not None
    assert acceptance.tree_tokens(found, weights.tree) > 1.7


def test_the_bundled_heads_are_refused_by_another_model(
    demo_target: Path, demo_medusa: Path
) -> None:
    lm_head = load_model(demo_target).get_output_embeddings().weight
    with pytest.raises(ModelError, match="trained for another model"):
        medusa_checkpoint.load(demo_medusa, lm_head=torch.roll(lm_head, 1, dims=1))
