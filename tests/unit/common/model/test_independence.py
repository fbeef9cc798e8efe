"""A model whose bits change with the size of a pass is found out before it serves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.model.independence import rows_independent
from common.model.output import Output
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner(tiny_models.save("llama", tmp_path_factory.mktemp("target")))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 13, 33])
@pytest.mark.parametrize("what", ["logits", "keys"])
def test_other_bits_in_passes_of_one_size_are_noticed(
    what: str, size: int, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last row alone, of which one number is the next one that there is."""
    forward = target.forward

    def changed(segments: Sequence[Segment]) -> Output:
        output = forward(segments)
        (segment,) = segments
        if len(segment.ids) == size:
            last = segment.start + size - 1
            row = (
                output.logits[-1]
                if what == "logits"
                else target.model_caches[-1][segment.slots[last]].view(-1)
            )
            row[0] = row[0].nextafter(row[0] + 1)
        return output

    assert rows_independent(target)
    monkeypatch.setattr(target, "forward", changed)
    assert not rows_independent(target)
