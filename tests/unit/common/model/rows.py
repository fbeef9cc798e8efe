"""Rows to sample: every way there is, and logits of every shape."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from common.model.row import Row
from common.sampling_params import SamplingParams

VOCAB = 160

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-40, 0.3, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 40, VOCAB, 10 * VOCAB]),
    top_p=st.sampled_from([1.0, 1.0, 0.999999, 0.95, 0.6, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-9, 9), max_size=3),
    seed=st.integers(0, 2**64 - 1),
)
rows_strategy = st.builds(
    Row,
    params=params_strategy,
    position=st.integers(0, 2**33),
    seen=st.sets(st.integers(0, VOCAB - 1), max_size=9).map(
        lambda ids: torch.zeros(VOCAB, dtype=torch.bool).index_fill(
            0, torch.tensor(list(ids), dtype=torch.int64), True
        )
    ),
    path=st.lists(st.integers(0, VOCAB - 1), max_size=4).map(tuple),
)


def random_logits(rows: int, vocab_size: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Spread differs from row to row: from nearly flat to one token taking all."""
    draw = torch.Generator().manual_seed(seed)
    spread = torch.rand(rows, 1, generator=draw) * 8 + 0.1
    return (torch.randn(rows, vocab_size, generator=draw) * spread).to(dtype)
