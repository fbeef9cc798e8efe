"""The compiled decoder computes what the model does, from what is there and nothing else."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.model import kernels
from common.model.kv_cache import KvLease
from common.model.loader import Dtype
from common.model.native import (
    Decoder,
    NativeModel,
    NativeProducts,
    instructions,
    library,
    top,
)
from common.model.native.memory import _KEPT_ROWS, _MOST_BYTES, Addresses, Rooms
from common.model.quantized import Quantize, integer_products, round_weight
from common.model.roll import Certainty, Limit, Rolled, RollOptions
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import runner
from tests.unit.common.model import rolls
from tests.unit.common.model.rolls import alone

pytestmark = [
    pytest.mark.skipif(not instructions(), reason="no compiler or no AVX2 here"),
    pytest.mark.usefixtures("vectors"),
]

TILES = [False, True] if instructions() == "amx" else [False]
WEIGHTS = [(False, torch.bfloat16), (True, torch.bfloat16), (False, torch.float32)]
"""Whether they are rounded to int8, and their type."""

LENGTH = 300
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one key head": ("llama", {"num_attention_heads": 12, "num_key_value_heads": 1}),
    "a key head each": ("llama", {"num_key_value_heads": 4}),
    "narrow heads": ("llama", {"head_dim": 8}),
    "heads of 40": ("llama", {"head_dim": 40}),
    "heads of 80": ("llama", {"head_dim": 80}),
    "wide heads": ("llama", {"head_dim": 128}),
    "odd widths": ("llama", {"hidden_size": 52, "intermediate_size": 90, "head_dim": 24}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "window": ("mistral", {}),
    "biases": ("qwen2", {}),
    "normed heads": ("qwen3", {}),
    "caps": ("gemma2", {}),
    "latents": ("youtu", {}),
    "shared keys": ("gemma4_text", {}),
    "heads of two sizes": ("gemma4_text", tiny_models.LARGE_GEMMA4),
}


def test_slots_of_long_texts_are_not_kept() -> None:
    addresses, slots = Addresses(), np.zeros(_MOST_BYTES // 16, dtype=np.int64)
    where, gone = addresses.of(slots), weakref.ref(slots)
    assert where == addresses.of(slots) == slots.ctypes.data
    del slots
    for _ in range(2):
        addresses.of(np.zeros(_MOST_BYTES // 16, dtype=np.int64))
    assert gone() is None


def test_passes_write_where_the_last_did_but_where_somebody_has_that() -> None:
    rooms, many = Rooms(8, 4, torch.bfloat16), 4 * _KEPT_ROWS
    first, written = rooms.take(many)
    states = written.states  # a copy
    del written
    same, _written = rooms.take(many)
    assert same is first
    second, other = rooms.take(many)  # what it wrote may still be asked for
    assert second is not first
    part = other.logits[1:2].numpy()
    del other
    third, _ = rooms.take(many)
    assert third is not second
    assert (len(states), part.shape) == (many, (1, 8))


def test_room_for_many_rows_is_kept_while_passes_have_many() -> None:
    rooms, many = Rooms(8, 4, torch.bfloat16), 4 * _KEPT_ROWS
    room = rooms.take(many)[0]
    assert rooms.take(many // 4)[0] is room
    few = rooms.take(many // 4 - 1)[0]
    assert few.rows == many // 4 - 1
    assert rooms.take(1)[0] is few


@pytest.mark.parametrize("name", SHAPES)
def test_in_float32_it_is_the_model(name: str, tmp_path: Path) -> None:
    kind, sizes = SHAPES[name]
    directory = tiny_models.save(kind, tmp_path, **sizes, initializer_range=0.1)
    native = runner(directory, "float32")
    assert isinstance(native.loaded.forward, NativeModel)
    found, expected = _logits(native), _logits(_through_torch(directory, "none", "float32"))
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma4_text", "llama", "qwen2_moe", "youtu"])
def test_matrices_lie_in_the_order_in_which_a_pass_reads_them(kind: str, tmp_path: Path) -> None:
    """For beyond the end of one of them the next is fetched."""
    model = runner(tiny_models.save(kind, tmp_path)).loaded.forward
    assert isinstance(model, NativeModel)
    weights = model._weights
    read = [weights.model.per_layer_product]
    for layer, _ in weights.layers:
        read += [layer.latent, layer.qkv, layer.kv, layer.out]
        if layer.experts:
            experts = layer.experts.contents
            read.append(experts.router)
            for each in range(experts.count):
                read += [experts.gate_up[each], experts.down[each]]
        read += [layer.gate_up, layer.down, layer.per_layer_gate, layer.per_layer_out]
    read.append(weights.model.head)
    made = [matrix.product.packed for matrix in weights._matrices]
    assert made == [product.packed for product in read if product.outputs]


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_the_model(name: str, quantize: Quantize, tmp_path: Path) -> None:
    """As near to float32 as torch's own bfloat16; with int8 weights about as near as torch's.

    Where torch has no exact integer products, it leaves inputs as they are.
    """
    kind, sizes = SHAPES[name]
    directory = tiny_models.save(kind, tmp_path, **sizes, initializer_range=0.1)
    native = runner(directory, "bfloat16", quantize=quantize)
    assert isinstance(native.loaded.forward, NativeModel)
    exact = _logits(_through_torch(directory, "none", "float32"))
    error = (_logits(native) - exact).abs().mean()
    torchs = (_logits(_through_torch(directory, quantize)) - exact).abs().mean()
    assert error < torchs * (1.0 if quantize == "none" else 1.1 if integer_products() else 1.6)


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 8, 13, 14, 15, 40])
@pytest.mark.parametrize("inputs", [38, 39, 64])
@pytest.mark.parametrize(("quantize", "dtype"), WEIGHTS)
def test_a_product_is_the_sum_over_inputs(
    quantize: bool, dtype: torch.dtype, inputs: int, rows: int, threads: int, tiles: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weights = torch.randn(3, 100, inputs, generator=generator).to(dtype)
    biases = torch.randn(3, 100, generator=generator)
    x = torch.randn(3, rows, inputs, generator=generator).to(dtype)
    decoder = Decoder(threads, dtype=dtype, tiles=tiles)
    products = NativeProducts(decoder, weights, biases, quantize=quantize)
    left, right = x.float(), weights.float()
    if quantize:
        scale = left.abs().amax(-1, keepdim=True) * (1 / 127)
        left = ((left / scale + 128.5).to(torch.uint8).float() - 128) * scale
        rounded = [round_weight(weight) for weight in right]
        right = torch.stack([steps.float() * scales[:, None] for steps, scales in rounded])
    assert torch.allclose(products(x), left @ right.mT + biases[:, None], atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-19], ids=["normal", "denormal"])
@pytest.mark.parametrize("inputs", [38, 320, 432])
@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("quantize", "dtype"), WEIGHTS)
def test_the_bits_of_a_row_are_its_own(
    quantize: bool, dtype: torch.dtype, tiles: bool, inputs: int, scale: float
) -> None:
    """Few rows may go another way than many: every sum is made in one order all the same."""
    generator = torch.Generator().manual_seed(inputs)

    def values(*shape: int) -> Tensor:
        powers = torch.randint(-20, 5, shape, generator=generator)
        return (scale * torch.randn(*shape, generator=generator) * 2.0**powers).to(dtype)

    products = NativeProducts(
        Decoder(1, dtype=dtype, tiles=tiles), values(1, 100, inputs), None, quantize=quantize
    )
    x = values(1, 20, inputs)
    together = products(x)
    for rows in (1, 2, 3, 4, 7, 16, 17):
        for first in range(0, 20 - rows + 1, 3):
            some = slice(first, first + rows)
            assert torch.equal(products(x[:, some]), together[:, some]), rows


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no Linux here")
def test_tiles_are_there_where_linux_says_so() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    there = {"amx_tile", "amx_bf16", "amx_int8"} <= flags
    assert Decoder(1).tiles == (there and library.VECTORS == ("avx512",))


@pytest.mark.skipif(instructions() != "amx", reason="no AMX here")
def test_tiles_change_no_exact_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 100, 90, generator=generator).bfloat16()
    x = torch.randn(1, 20, 90, generator=generator).bfloat16()
    tiled, not_tiled = (
        NativeProducts(Decoder(1, tiles=tiles), weights, None, quantize=True)(x)
        for tiles in (True, False)
    )
    assert torch.equal(tiled, not_tiled)


@pytest.mark.parametrize(
    ("ids", "start", "slots"),
    [([-1], 0, 4), ([tiny_models.VOCAB], 0, 4), ([5], tiny_models.MAX_LEN, 4), ([5], 0, 10**6)],
)
def test_what_is_not_there_is_refused(
    ids: list[int], start: int, slots: int, tmp_path: Path
) -> None:
    """Compiled code must not read where an index points to nothing."""
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    table = torch.full((start + 1,), slots).numpy()
    with pytest.raises(IndexError):
        target.forward([Segment(ids, start, table, wanted=[0])])
    with pytest.raises(IndexError):
        target.forward([Segment([5], start + 1, table, wanted=[0])])
    with pytest.raises(IndexError):
        target.forward([Segment([5], 0, torch.zeros(1, dtype=torch.int64).numpy(), wanted=[0, 0])])
    with pytest.raises(IndexError):
        target.move([(0, 10**6)])


@pytest.mark.parametrize("size", [5, 16, 4099])
def test_the_likeliest_tokens_come_with_their_chances(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = 5 * torch.randn(3, 2, size, generator=generator)
    ids, chances = top(logits, 4)
    expected = logits.softmax(-1).topk(4)
    assert torch.equal(ids, expected.indices)
    assert torch.allclose(chances, expected.values, rtol=1e-5)
    logits[0, 0] = 1.0
    assert top(logits, 4)[0][0, 0].tolist() == [0, 1, 2, 3], "of equal ones the lower"
    logits[0, 1] = float("nan")
    assert 0 <= top(logits, 4)[0].min() <= top(logits, 4)[0].max() < size


@given(
    size=st.integers(1, 3000),
    kinds=st.integers(1, 40),
    best=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_of_equal_logits_the_lower_come_first_wherever_they_stand(
    size: int, kinds: int, best: int, seed: int
) -> None:
    """Few different ones, those that are no number or forbidden among them."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=kinds).astype(np.float32)
    values[draw.random(kinds) < 0.1] = np.nan
    values[draw.random(kinds) < 0.1] = -np.inf
    logits = values[draw.integers(0, kinds, size)]
    ids = top(torch.from_numpy(logits)[None], best)[0][0].tolist()
    open_ = [at for at in range(size) if logits[at] > -np.inf]  # nor is NaN larger than anything
    expected = sorted(open_, key=lambda at: (-logits[at], at))[:best]
    assert ids == expected + [0] * (best - len(expected))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("levels", [0, 1, 4])
def test_rolling_on_is_step_after_step(levels: int, dtype: Dtype, tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), dtype)
    rolls.is_step_after_step(target, levels)
    rolls.is_step_after_step_behind_a_tree(target, levels)
    for penalty, bias in ((1.0, 0.0), (1.5, 0.0), (0.6, -1.0), (1.0, 3.0)):
        rolls.with_draws_is_step_after_step(target, levels, penalty=penalty, bias=bias)
    for seed in range(4):
        rolls.with_changes_is_step_after_step(target, levels, seed)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_roll_end_each_on_its_own(seed: int, tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    rolls.ends_where_rows_are_too_unlikely(target, seed)
    rolls.ends_with_texts(target, seed)


@pytest.mark.parametrize("rung", [False, True])
def test_news_ends_a_roll_between_passes(rung: bool, tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    assert rolls.passes_beside_news(target, rung=rung) == (1 if rung else 3)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_roll_goes_no_further_than_its_draws_are_sure(depth: int, tmp_path: Path) -> None:
    """The nucleus ends with just the token that is drawn; where it is the first one of a row, all
    rows are left as they are."""
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    unsure = next(filter(None, (_doubtful(target, [5, 9, 33], depth, seed) for seed in range(99))))
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(64)
    segments = [
        Segment([5, 9, 33], 0, lease.slots, wanted=[2]),
        Segment([7, 2], 0, lease.slots[16:], wanted=[1]),
    ]
    slots = lease.slots[32:40].reshape(4, 2).tolist()
    drawings = [Row(unsure, 3).drawing, Row(SamplingParams(temperature=0.0), 2).drawing]
    rolled = target.roll(segments, slots, RollOptions(2, drawings=drawings))
    known = (rolled.ids[:, :, 0] >= 0).sum(0).tolist()
    if depth == 0:
        assert known == [0, 1]
        assert torch.equal(rolled.output.logits[0], alone(target, [5, 9, 33]))
        assert torch.equal(rolled.output.logits[1], alone(target, [7, 2]))
    else:
        assert known == [depth, 5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("shared_cache", [0, 1 << 30], ids=["memory", "cached"])
def test_parts_of_a_roll_are_as_the_whole(
    shared_cache: int, seed: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that threads roll apart; of the rows of each some end early, in every way."""
    monkeypatch.setattr("common.model.native.library._shared_cache", lambda: shared_cache)
    directory = tiny_models.save("llama", tmp_path)
    draw, levels, rows = random.Random(seed), 5, random.Random(seed).randint(96, 110)
    ids = [draw.randrange(99) for _ in range(rows)]
    ways = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.2, top_p=0.8, seed=seed)]
    drawings = [Row(draw.choice(ways), 1 + row).drawing for row in range(rows)]
    limits = [Limit(draw.randint(1, 7), draw.sample(range(99), 5)) for _ in range(rows)]
    certainty = Certainty(
        bounds=np.array([0.1, 0.4], dtype=np.float32),
        chances=np.array([[0.5, 0.7, 1.0]] * rows, dtype=np.float32),
        least=[draw.choices([0.0, 0.4], k=draw.randrange(3)) for _ in range(rows)],
        tokens=[draw.randint(-2, 1) for _ in range(rows)],
        right=[1.0] * rows,
    )
    options: dict[str, Any] = {"drawings": drawings, "limits": limits, "certainty": certainty}

    def rolled(most_threads: int) -> Rolled:
        target = runner(directory, "bfloat16", most_threads=most_threads)
        leases = [KvLease(target.pool.blocks) for _ in range(rows)]
        assert all(lease.reserve(1 + levels) for lease in leases)
        segments = [
            Segment([token], 0, lease.slots, wanted=(0,))
            for token, lease in zip(ids, leases, strict=True)
        ]
        slots = np.array([lease.slots[1 : 1 + levels] for lease in leases]).T
        return target.roll(segments, slots, RollOptions(2, **options))

    whole, parts = rolled(1), rolled(threads)
    assert np.array_equal(parts.ids, whole.ids)
    found = whole.ids >= 0
    assert np.array_equal(parts.behind[found], whole.behind[found])
    assert not found[:, :, 0].all()
    assert len(whole.ids) == levels + 1


def test_a_pass_tells_the_likeliest_tokens(tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    ids = [5, 9, 33, 7, 80, 12]
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(len(ids))
    output = target.forward([Segment(ids, 0, lease.slots, wanted=[1, 5])])
    assert output.chosen == output.logits.argmax(-1).tolist()
    output = target.forward([Segment(ids, 0, lease.slots, wanted=[])])
    assert output.chosen == []


@pytest.mark.parametrize("texts", [3, 100])
def test_a_pass_draws_the_tokens_after_its_rows(texts: int, tmp_path: Path) -> None:
    """By one thread and by two, each for the rows of some products or, of many texts, for its
    own; and where a draw is not sure, by torch."""
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16", most_threads=2)
    if texts == 3:
        target.spread(True)
    ways = [
        SamplingParams(),
        SamplingParams(temperature=1.2, seed=4),
        SamplingParams(temperature=0.8, top_p=0.9, seed=5),
    ]
    leases = [KvLease(target.pool.blocks) for _ in range(texts)]
    assert all(lease.reserve(2) for lease in leases)
    segments = [
        Segment([text % 99, 7], 0, lease.slots, wanted=[1] if text % 5 == 4 else [0, 1])
        for text, lease in enumerate(leases)
    ]
    rows = [
        Row(ways[text % 3], 1 + at)
        for text, segment in enumerate(segments)
        for at in segment.wanted
    ]
    doubtful = next(filter(None, (_doubtful(target, [1], 0, seed) for seed in range(99))))
    rows[2] = Row(doubtful, 1)  # the first one of the second text
    output = target.forward(segments, [row.drawing for row in rows])
    expected = sample(output.logits, rows).tolist()
    assert output.chosen is not None
    assert output.chosen[2] == -1
    assert [*output.chosen[:2], expected[2], *output.chosen[3:]] == expected


def test_two_pieces_of_one_text_in_one_batch(tmp_path: Path) -> None:
    """Each sees its own end of the same table."""
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    ids = [5, 9, 33, 7, 80, 12, 21]
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(len(ids))
    pieces = [Segment(ids[a:b], a, lease.slots, wanted=[b - a - 1]) for a, b in ((0, 3), (3, 7))]
    first, second = target.forward(pieces).logits
    assert torch.equal(first, alone(target, ids[:3]))
    assert torch.equal(second, alone(target, ids))


def _doubtful(target: Runner, ids: list[int], depth: int, seed: int) -> SamplingParams | None:
    """A nucleus that after so many draws ends at the token drawn with this seed, if one does."""
    whole = SamplingParams(temperature=0.9, seed=seed)
    drawn = _drawn(target, ids, depth + 1, whole)
    chances = (alone(target, drawn[:-1]) / 0.9).double().softmax(-1)
    before = float(chances[chances > chances[drawn[-1]]].sum())
    cut = replace(whole, top_p=before or 1.0)
    same = _drawn(target, ids, depth, cut) == drawn[:-1]  # its tokens before are the same
    return cut if before and same else None


def _drawn(target: Runner, ids: list[int], tokens: int, sampling: SamplingParams) -> list[int]:
    """A text, and so many more tokens."""
    for _ in range(tokens):
        logits = alone(target, ids)[None]
        ids = [*ids, int(sample(logits, [Row(sampling, len(ids))])[0])]
    return ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["llama", "gemma4_text"])
def test_moves_read_before_they_write(kind: str, dtype: Dtype, tmp_path: Path) -> None:
    """Once, however many layers see what is moved."""
    target = runner(tiny_models.save(kind, tmp_path), dtype)
    own = [layer for layer in target.pool.layers if layer.numel()]
    assert len(own) == 2
    for layer in own:
        layer.copy_(torch.arange(len(layer))[:, None, None].expand(layer.shape))
    target.move([(20, 21), (21, 22), (30, 20)])
    for layer in own:
        assert layer[20:23].flatten(1).unique(dim=1)[:, 0].tolist() == [30, 20, 21]


@pytest.mark.parametrize("wanted", [[], [29], [3, 17, 29], [17, 3], [3, 3, 17], range(30)])
def test_rows_go_on_behind_the_last_keys_where_they_are_wanted(
    wanted: Sequence[int], tmp_path: Path
) -> None:
    """With the bits they have where all are; two texts and a tree beside each other."""
    target = runner(tiny_models.save("gemma4_text", tmp_path), "bfloat16")
    ids = _ids(target, 30)
    leases = [target.pool.lease(80) for _ in range(3)]
    tree = TokenTree(5)
    for path in ((6, 7), (6, 8), (9, 10, 11)):
        tree.add_path(path)
    others = [
        Segment(_ids(target, 20), 0, leases[1].slots, wanted=[19]),
        Segment(tree.ids, 0, leases[2].slots, tree=tree, wanted=range(1, len(tree), 2)),
    ]
    whole = target.forward([Segment(ids, 0, leases[0].slots, wanted=range(30)), *others]).logits
    some = target.forward([Segment(ids, 0, leases[0].slots, wanted=wanted), *others]).logits
    assert torch.equal(some, torch.cat((whole[:30][list(wanted)], whole[30:])))


def _ids(target: Runner, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, target.loaded.vocab_size, (length,), generator=generator).tolist()


def _logits(target: Runner) -> Tensor:
    """Of a text in a few pieces. # [LENGTH, V]"""
    ids = _ids(target, LENGTH)
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(LENGTH)
    pieces = [(0, 130), (130, 131), (131, LENGTH)]
    return torch.cat(
        [
            target.forward(
                [Segment(ids[start:end], start, lease.slots, wanted=range(end - start))]
            ).logits.float()
            for start, end in pieces
        ]
    )


def _through_torch(directory: Path, quantize: Quantize, dtype: Dtype = "bfloat16") -> Runner:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "can_run", lambda model: False)
        return runner(directory, dtype, quantize=quantize)
