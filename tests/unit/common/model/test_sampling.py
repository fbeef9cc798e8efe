import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers.generation import logits_process as hf

from common.model import sampling, warpers
from common.model.adjust import adjust
from common.model.distribution import distributions
from common.model.native import library as native_library
from common.model.native.library import VECTORS, opened
from common.model.noise import gumbel_rows
from common.model.row import Row
from common.model.sampling import rank, sample
from common.sampling_params import SamplingParams
from tests.unit.common.model.rows import VOCAB, random_logits, rows_strategy


def hugging_face(logits: Tensor, row: Row) -> Tensor:
    """The real processors, in the order of `_get_logits_processor`."""
    params, vocab_size = row.params, logits.shape[0]
    assert row.seen is not None
    ids = torch.tensor([row.seen.nonzero().flatten().tolist() + list(row.path)], dtype=torch.int64)
    steps: list[hf.LogitsProcessor] = []
    if params.logit_bias:
        bias = {(token,): float(value) for token, value in params.logit_bias.items()}
        steps.append(hf.SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1:
        steps.append(hf.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(hf.TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(hf.MinPLogitsWarper(params.min_p))
    scores = logits.float()[None]
    for step in steps:
        scores = step(ids, scores)
    assert scores.shape == (1, vocab_size)
    return scores[0]


def warp(logits, rows):
    """The logits that rows are sampled from, -inf where cut; of greedy ones all. # [N, V]"""
    adjusted = adjust(logits, rows)
    warped = torch.full_like(adjusted, -math.inf)
    found = warpers.survivors(adjusted, [row.params for row in rows])
    for line, whole, row, (ids, scores) in zip(warped, adjusted, rows, found, strict=True):
        line[torch.from_numpy(ids)] = torch.from_numpy(scores)
        if row.params.greedy:
            line.copy_(whole)
    return warped


@settings(max_examples=150)
@given(rows_strategy, st.integers(0, 2**31))
def test_warp_equals_hugging_face(row, seed):
    assume(row.params.temperature > 1e-3)
    assume(row.params.top_p in (1.0, 0.95, 0.6))  # beyond, float32 sums decide
    logits = random_logits(1, VOCAB, seed, torch.float32)
    assume(not near_boundary(logits, row))
    ours, theirs = warp(logits, [row])[0], hugging_face(logits[0], row)
    assert torch.equal(ours.isinf(), theirs.isinf())
    kept = ~ours.isinf()
    torch.testing.assert_close(ours[kept], theirs[kept], rtol=1e-6, atol=1e-6)


def near_boundary(logits: Tensor, row: Row) -> bool:
    """Whether top-p or min-p hangs on the last bits of a sum or a quotient."""
    scores = hugging_face(logits[0], row._replace(params=replace(row.params, top_p=1.0, min_p=0.0)))
    probs = scores.double().softmax(-1).sort(descending=True).values
    before = probs.cumsum(-1) - probs
    nucleus = (before - row.params.top_p).abs().min() < 1e-5
    quotient = (probs / probs[0] - row.params.min_p).abs().min() < 1e-5
    return bool(nucleus) or (0 < row.params.min_p < 1 and bool(quotient))


@settings(max_examples=150)
@given(
    st.lists(rows_strategy, min_size=1, max_size=16),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.data(),
)
def test_a_row_alone_equals_the_row_in_any_batch(rows, seed, dtype, data):
    logits = random_logits(len(rows), VOCAB, seed, dtype)
    before = logits.clone()
    together = sample(logits, rows)
    assert torch.equal(logits, before)
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], [row]).item() == together[i].item()
        assert torch.equal(warp(logits[i : i + 1], [row])[0], warp(logits, rows)[i])
    order = data.draw(st.permutations(range(len(rows))))
    assert torch.equal(sample(logits[order], [rows[i] for i in order]), together[order])


@settings(max_examples=150)
@given(
    st.lists(rows_strategy, min_size=1, max_size=6),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_sample_is_argmax_of_warped_logits_and_noise(rows, seed, dtype):
    """The few-candidates path and the plain form over the whole vocabulary agree."""
    logits = random_logits(len(rows), VOCAB, seed, dtype)
    score = warp(logits, rows).double()
    noise = gumbel_rows([r.params.seed for r in rows], [r.position for r in rows], VOCAB, "cpu")
    greedy = torch.tensor([row.params.greedy for row in rows])
    score += noise.masked_fill(greedy[:, None], 0.0)
    assert torch.equal(sample(logits, rows), score.argmax(-1))


@settings(max_examples=200)
@given(
    st.lists(rows_strategy, min_size=1, max_size=4),
    st.sampled_from([3, 17, 64, VOCAB, 5000]),
    st.sampled_from([0.1, 1.0, 5.0]),
    st.sampled_from(["", "equal", "broken"]),
    st.integers(0, 2**31),
)
def test_compiled_code_draws_what_torch_does(rows, vocab_size, spread, kind, seed):
    """Where it is sure; where it is not, torch is asked."""
    if vocab_size < VOCAB:  # else ids that there are not occur
        bare = {"logit_bias": {}, "repetition_penalty": 1.0}
        rows = [row._replace(params=replace(row.params, **bare)) for row in rows]
    logits = random_logits(len(rows), vocab_size, seed, torch.float32) * spread
    if kind == "equal":
        logits = logits.round()
    elif kind == "broken":
        logits[:, ::3] = torch.tensor([math.nan, math.inf, -math.inf])[seed % 3]
    chosen, ranked = sample(logits, rows), rank(logits, rows, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "instructions", str)
        assert torch.equal(chosen, sample(logits, rows))
        plainly = rank(logits, rows, 3)
    if kind != "broken":
        assert [one.ids for one in ranked] == [one.ids for one in plainly]
        for one, other in zip(ranked, plainly, strict=True):
            assert one.behind == pytest.approx(other.behind, rel=1e-9, abs=1e-9)


@pytest.mark.skipif(not sampling.instructions(), reason="no compiled code here")
@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"top_p": 0.95},
        {"top_p": 1e-6},
        {"top_p": 0.999999, "temperature": 0.01},
        {"top_k": 40},
        {"min_p": 0.02},
    ],
)
def test_compiled_code_is_hardly_ever_unsure(vectors, cut, monkeypatch):
    if (library := opened(vectors)) is None:
        pytest.skip("this processor has no such vectors")
    monkeypatch.setattr(native_library, "_library", lambda: library)
    how = {"temperature": 0.8, **cut}
    rows = [Row(SamplingParams(seed=i, **how), 7 * i) for i in range(300)]
    logits = random_logits(len(rows), 4096, 5, torch.float32)
    drawings = [row.drawing for row in rows]
    ids, _ = native_library.draw(logits, drawings, 2)
    assert (ids[:, 0] < 0).sum() <= 3
    scaled, certain = native_library.survivors(logits, drawings)
    assert (~certain).sum() <= 3
    found = warpers.survivors(logits, [row.params for row in rows])
    for line, is_certain, (tokens, values) in zip(scaled, certain, found, strict=True):
        if is_certain:
            assert np.flatnonzero(line > -math.inf).tolist() == tokens.tolist()
            assert line[tokens].tolist() == values.tolist()
    monkeypatch.setattr(sampling, "instructions", str)
    sure = ids[:, 0] >= 0
    assert ids[sure, 0].tolist() == sample(logits, rows)[torch.from_numpy(sure)].tolist()


@settings(max_examples=100)
@given(st.lists(rows_strategy, min_size=1, max_size=4), st.integers(0, 2**31), st.integers(1, 6))
def test_ranks_are_of_warped_logits_and_noise(rows, seed, count):
    logits = random_logits(len(rows), VOCAB, seed, torch.float32)
    noise = gumbel_rows([r.params.seed for r in rows], [r.position for r in rows], VOCAB, "cpu")
    noise[[row.params.greedy for row in rows]] = 0
    score = warp(logits, rows).double() + noise
    ranked = rank(logits, rows, count)
    assert [ids[0] for ids, _ in ranked] == sample(logits, rows).tolist()
    for line, (ids, behind) in zip(score, ranked, strict=True):
        assert len(ids) == len({*ids}) == min(count, int((line > -math.inf).sum()))
        values = line[ids].tolist()
        assert values == sorted(values, reverse=True)
        assert list(behind) == pytest.approx([values[0] - value for value in values])
        rest = line.index_fill(0, torch.tensor(ids), -math.inf)
        assert values[-1] >= rest.max().item()


@pytest.mark.parametrize("compiled", [True, False])
def test_ranks_begin_with_the_lowest_of_equal_ones(compiled, monkeypatch):
    """And end before what cannot be chosen."""
    if not compiled:
        monkeypatch.setattr(sampling, "instructions", str)
    greedy = [Row(params=SamplingParams(), position=0)]
    [ranked] = rank(torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0]]), greedy, 2)
    assert ranked == ([1, 2], [0.0, 0.0])
    [ranked] = rank(torch.tensor([[1.0, -math.inf, 0.5, -math.inf]]), greedy, 3)
    assert ranked == ([0, 2], [0.0, 0.5])


@settings(max_examples=40)
@given(st.lists(rows_strategy, min_size=1, max_size=5), st.integers(0, 2**31))
def test_distributions_are_the_softmax_of_warped_logits(rows, seed):
    rows = [row for row in rows if not row.params.greedy]
    assume(rows)
    logits = random_logits(len(rows), VOCAB, seed, torch.float32)
    for found, line in zip(distributions(logits, rows), warp(logits, rows), strict=True):
        chances = line.double().softmax(-1).numpy()
        few = found.listed()
        assert set((line > -math.inf).nonzero().flatten().tolist()) <= set(few.ids.tolist())
        np.testing.assert_allclose(few.chances, chances[few.ids], rtol=1e-12)
        assert [found.chance(token) for token in range(VOCAB)] == pytest.approx(chances.tolist())
        assert found.entropy() == pytest.approx(stats.entropy(chances), abs=1e-9)


@settings(max_examples=200)
@given(
    st.lists(rows_strategy, min_size=1, max_size=4),
    st.sampled_from([VOCAB, VOCAB + 1, 5000]),
    st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    st.sampled_from(["", "equal", "broken"]),
    st.integers(0, 2**31),
)
def test_compiled_code_finds_the_distributions_that_torch_does(rows, size, spread, kind, seed):
    """Where it is sure; where it is not, torch is asked."""
    rows = [row for row in rows if not row.params.greedy]
    assume(rows)
    logits = random_logits(len(rows), size, seed, torch.float32) * spread
    if kind == "equal":
        logits = logits.round()
    elif kind == "broken":
        logits[:, ::3] = torch.tensor([math.nan, math.inf, -math.inf])[seed % 3]
    before = logits.clone()
    found = distributions(logits, rows)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "instructions", str)
        expected = distributions(logits, rows)
    for one, other in zip(found, expected, strict=True):
        assert one.listed().ids.tolist() == other.listed().ids.tolist()
        assert one.listed().chances.tolist() == other.listed().chances.tolist()


@pytest.mark.parametrize("few", [True, False])
def test_number_of_candidates_changes_nothing(monkeypatch, few):
    """No candidate beyond the survivors, or every token: the same ids."""
    logits = random_logits(12, 2000, 3, torch.float32)
    shared = SamplingParams(temperature=0.9, top_p=0.9, min_p=0.001, seed=8)
    rows = [Row(params=replace(shared, top_k=i % 3 * 50), position=i) for i in range(12)]
    expected = sample(logits, rows)
    warped = warp(logits, rows)
    least = warped.where(warped > -math.inf, math.inf).amin(-1, keepdim=True)
    lowest = torch.full_like(least, torch.finfo(torch.float32).min)
    min_p = (logits / 0.9).amax(-1, keepdim=True) + math.log(0.001)
    forced = least if few else torch.maximum(lowest, min_p)
    monkeypatch.setattr(warpers, "_floors", lambda *_: forced)
    assert torch.equal(sample(logits, rows), expected)


@pytest.mark.parametrize("count", [1, 3, 17, 4096, 150_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_lowest_id_on_a_tie(count, dtype):
    draw = torch.Generator().manual_seed(count)
    logits = torch.randint(0, 4, (4, count), generator=draw).to(dtype)
    expected = [line.index(max(line)) for line in logits.tolist()]
    assert sample(logits, [Row(params=SamplingParams(), position=0)] * 4).tolist() == expected


def test_ties_top_k_keeps_all_and_top_p_keeps_the_lowest_ids():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])

    def kept(**fields):
        row = Row(params=SamplingParams(temperature=1.0, **fields), position=0)
        return (warp(logits, [row])[0] > -math.inf).nonzero().flatten().tolist()

    assert kept(top_k=1) == [1, 2, 4]
    assert kept(top_k=1, top_p=0.5) == [1, 2]
    assert kept(top_p=0.01) == [1]
    assert kept(min_p=1.0) == [1, 2, 4]


def test_texts_that_differ_in_their_biases_alone_keep_them_apart():
    rows = [Row(SamplingParams(logit_bias={token: 1.5}), 0) for token in (0, 1, 0)]
    assert adjust(torch.ones(3, 2), rows).tolist() == [[2.5, 1.0], [1.0, 2.5], [2.5, 1.0]]


def test_biases_of_a_text_are_looked_up_once():
    looked_up = []

    class Biases(dict):
        def values(self):
            looked_up.append(self)
            return super().values()

    row = Row(SamplingParams(logit_bias=Biases({3: -2.0})), 0)
    for _ in range(2):
        adjust(torch.zeros(4, 8), [row] * 4)
    assert len(looked_up) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_penalty_counts_a_token_once_wherever_it_was_seen(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(sampling, "instructions", str)
    seen = torch.tensor([True, True, False, False])
    params = SamplingParams(repetition_penalty=2.0, logit_bias={1: 1.0})
    logits = torch.tensor([[-1.0, 3.0, 6.0, 5.0]])
    row = Row(params=params, position=0, seen=seen, path=(0, 2, 2))
    assert warp(logits, [row]).tolist() == [[-2.0, 2.0, 3.0, 5.0]]
    assert rank(logits, [row], 4) == [([3, 2, 1, 0], [0.0, 2.0, 3.0, 7.0])]
    assert seen.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "fields",
    [{}, {"top_k": 8}, {"top_p": 0.85}, {"min_p": 0.1}, {"top_k": 12, "top_p": 0.9, "min_p": 0.05}],
)
@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_sampled_distribution_is_the_warped_softmax(fields, axis):
    """Chi-square over 20 000 draws; wrong alarm 1 in 1 000 a case, the draws are fixed."""
    draws = 20_000
    logits = random_logits(1, 24, 11, torch.float32) / 2
    shared = SamplingParams(temperature=0.8, seed=42, **fields)
    if axis == "positions":
        rows = [Row(params=shared, position=i) for i in range(draws)]
    else:
        rows = [Row(params=replace(shared, seed=i << 30), position=5) for i in range(draws)]
    counts = np.bincount(sample(logits.expand(draws, -1), rows).numpy(), minlength=24)
    expected = warp(logits, rows[:1])[0].double().softmax(-1).numpy() * draws
    assert not counts[expected == 0].any()
    rare = expected < 5  # too few for the approximation: one cell together
    observed = np.append(counts[~rare], counts[rare].sum())
    cells = np.append(expected[~rare], expected[rare].sum())
    full = cells > 0
    assert stats.chisquare(observed[full], cells[full]).pvalue > 1e-3


def test_different_seeds_differ_and_the_same_seed_repeats():
    logits = random_logits(1, 500, 1, torch.float32).mul(0.2).expand(64, -1)
    shared = SamplingParams(temperature=1.0, top_p=0.99)

    def text(seed):
        params = replace(shared, seed=seed)
        return sample(logits, [Row(params=params, position=i) for i in range(64)]).tolist()

    assert text(1) == text(1)
    assert len({tuple(text(seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize("noise_level", [0.05, 0.3, 1.0])
def test_coupled_samples_of_close_distributions_agree(noise_level):
    """Agreement is at least (1 - TV) / (1 + TV), less 4 standard errors (1 in 30 000)."""
    draws = 4000
    target = random_logits(1, 50, 21, torch.float32) / 2
    draft = target + noise_level * torch.randn(1, 50, generator=torch.Generator().manual_seed(4))
    rows = [Row(params=SamplingParams(temperature=1.0, seed=9), position=i) for i in range(draws)]
    agree = sample(target.expand(draws, -1), rows) == sample(draft.expand(draws, -1), rows)
    variation = 0.5 * (target.softmax(-1) - draft.softmax(-1)).abs().sum().item()
    bound = (1 - variation) / (1 + variation)
    error = math.sqrt(bound * (1 - bound) / draws)
    assert agree.double().mean().item() > bound - 4 * error


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.5}])
def test_a_broken_row_harms_no_other(broken, fields):
    params = SamplingParams(temperature=0.7, seed=3, **fields)
    logits = random_logits(3, 40, 5, torch.float32)
    expected = sample(logits, [Row(params=params, position=i) for i in range(3)])
    logits[1] = broken
    got = sample(logits, [Row(params=params, position=i) for i in range(3)])
    assert got[[0, 2]].tolist() == expected[[0, 2]].tolist()
    assert 0 <= got[1] < 40


@pytest.mark.parametrize("compiled", [True, False])
def test_the_likeliest_of_a_row_is_none_that_is_no_number(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(sampling, "instructions", str)
    logits = torch.tensor([[1.0, math.nan, 3.0, math.nan], [math.nan, 2.0, 1.0, 0.0], [0, 1, 0, 0]])
    rows = [Row(params=SamplingParams(), position=3)] * 3
    assert sample(logits, rows).tolist() == [2, 1, 1]
    ranked = rank(logits, rows, 3)
    assert [list(one.ids) for one in ranked] == [[2, 0], [1, 2, 3], [1, 0, 2]]
    assert [list(one.behind) for one in ranked] == [[0, 2], [0, 1, 2], [0, 1, 1]]


def test_no_rows():
    assert sample(torch.empty(0, 9), []).shape == (0,)
    assert warp(torch.empty(0, 9), []).shape == (0, 9)


@pytest.mark.parametrize("threads", [1, 2])
def test_elementwise_bits_do_not_depend_on_the_place(threads):
    """What purity rests on: exp and log give a value the same bits anywhere in a tensor.

    True of these two, not of every function: vector bodies and scalar tails can differ.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = torch.rand(70_000, generator=torch.Generator().manual_seed(2))
        for function, given in ((torch.exp, values * -30), (torch.log, values.double())):
            whole = function(given)
            for start in range(0, 40, 3):
                for length in (1, 2, 3, 7, 8, 15, 17, 31, 33, 63, 1001):
                    part = function(given[start : start + length].clone())
                    assert torch.equal(part, whole[start : start + length])
            assert torch.equal(function(given[::3]), whole[::3])
    finally:
        torch.set_num_threads(before)
