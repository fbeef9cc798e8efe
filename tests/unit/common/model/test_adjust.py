import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model.adjust import _AT_ONCE, adjust_at_once, adjust_each
from common.model.row import Row
from common.sampling_params import SamplingParams
from tests.unit.common.model.rows import VOCAB, random_logits, rows_strategy


@given(st.lists(st.tuples(rows_strategy, st.integers(1, 3)), min_size=1, max_size=4), st.data())
def test_rows_at_once_have_the_bits_of_each_by_itself(texts, data):
    rows = [row for row, times in texts for _ in range(times)]
    seed = data.draw(st.integers(0, 2**31))
    logits = random_logits(len(rows), VOCAB, seed, torch.float32)
    logits.view(-1)[:: data.draw(st.integers(1, VOCAB))] = data.draw(
        st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    )
    seen = [None if row.seen is None else row.seen.clone() for row in rows]
    each, at_once = logits.clone(), logits.clone()
    adjust_each(each, rows)
    adjust_at_once(at_once, rows)
    assert torch.equal(each.view(torch.int32), at_once.view(torch.int32))
    for row, before in zip(rows, seen, strict=True):
        assert before is None or torch.equal(row.seen, before), "what was seen is not changed"


@pytest.mark.parametrize("count", [_AT_ONCE, _AT_ONCE + 1, 2 * _AT_ONCE + 1])
def test_more_rows_than_are_penalised_at_once(count):
    params, seen = SamplingParams(repetition_penalty=1.5), torch.arange(VOCAB) % 3 == 0
    rows = [Row(params, 9, seen, (place % VOCAB,)) for place in range(count)]
    each = random_logits(count, VOCAB, 1, torch.float32)
    at_once = each.clone()
    adjust_each(each, rows)
    adjust_at_once(at_once, rows)
    assert torch.equal(each, at_once)
