import math

import pytest
import torch

from common.model import likeliest as module
from common.model.likeliest import likeliest


@pytest.mark.parametrize("compiled", [True, False])
def test_chances_are_numbers_whatever_the_logits_are(compiled, monkeypatch):
    """A large bias or a tiny penalty makes infinite ones."""
    if not compiled:
        monkeypatch.setattr(module, "instructions", str)
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    logits[1:, 3::4] = math.nan
    logits[2:, ::4] = -math.inf
    logits[1:, [6, 30]] = math.inf
    ids, chances = likeliest(logits, 4)
    assert chances[0].tolist() == pytest.approx(logits[0].softmax(-1)[ids[0]].tolist(), rel=1e-5)
    for line, said in zip(ids.tolist()[1:], chances.tolist()[1:], strict=True):
        assert {*line[:2]} == {6, 30}
        assert said == [0.5, 0.5, 0.0, 0.0]
