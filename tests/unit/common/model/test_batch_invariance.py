"""The bits of a row's logits, and of the keys and values it leaves, depend on that row alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.model import attention, kernels
from common.model.batch import key_width
from common.model.kv_cache import KvLease
from common.model.loader import Dtype
from common.model.quantized import Quantize
from common.model.runner import Runner
from common.model.segment import Segment, tree_positions
from common.model.tree import TokenTree
from tests import tiny_models
from tests.inprocess import runner

LENGTH = 60
KINDS = (
    "llama",
    "mistral-bfloat16",
    "gemma3_text-bfloat16",
    "gemma3_text-torch",
    "gemma2-bfloat16",
    "gemma2-parts",
    "gpt_oss-bfloat16",
    "gpt_oss-parts",
    "qwen3_moe",
    "qwen3_moe-torch",
    "qwen2_moe-bfloat16",
    "qwen2_moe-more",
    "gemma4_text-bfloat16",
    "olmo2-bfloat16",
    "youtu-bfloat16",
    "gpt2",
    "gpt2-int8",
)


@pytest.fixture(
    scope="module",
    params=[
        "bfloat16",
        "float32",
        "bfloat16-threads",
        "bfloat16-more",
        "bfloat16-torch",
        "float32-torch",
        "bfloat16-int8",
        "bfloat16-int4",
        *KINDS,
    ],
)
def target(
    request: pytest.FixtureRequest, demo_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """The demo target in a type, on one thread or two, or a tiny model; some rounded.

    Once passes get more threads than there are processors, and a text alone has one.

    Some of what compiled code does here torch does elsewhere. Attention by steps takes a few tiles
    at a time, as behind long texts.
    """
    name, _, how = request.param.partition("-")
    rounded: dict[str, Quantize] = {"int8": "int8", "int4": "int4"}
    quantize = rounded.get(how, "none")
    more = 5 if how == "more" else 0
    before = torch.get_num_threads()
    torch.set_num_threads(2 if how == "threads" else 1)
    with pytest.MonkeyPatch.context() as patch:
        if how in ("torch", "parts"):
            patch.setattr(kernels, "can_run", lambda model: False)
        if how == "parts":
            patch.setattr(attention, "_NEAR_BYTES", 1 << 14)
        if request.param in KINDS:
            directory = tiny_models.save(name, tmp_path_factory.mktemp(name))
            dtype: Dtype = "bfloat16" if how == "bfloat16" else "float32"
            yield runner(directory, dtype, quantize=quantize, most_threads=more)
        else:
            yield runner(demo_target, name, quantize=quantize, most_threads=more)
    torch.set_num_threads(before)


def _text(target: Runner, seed: int, length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, target.loaded.vocab_size, (length,), generator=generator).tolist()


def _lease(target: Runner, positions: int) -> KvLease:
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(positions)
    return lease


def _one_by_one(target: Runner, ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits and cache of a text computed token by token, alone."""
    lease = _lease(target, len(ids))
    logits = [
        target.forward([Segment([token], at, lease.slots, wanted=[0])]).logits
        for at, token in enumerate(ids)
    ]
    cache = _cache(target, lease, len(ids))
    lease.release()
    return torch.cat(logits), cache


def _cache(target: Runner, lease: KvLease, length: int) -> list[Tensor]:
    slots = torch.from_numpy(lease.slots[:length])
    return [layer[slots].clone() for layer in target.pool.layers]


@pytest.fixture(scope="module")
def alone(target: Runner) -> list[tuple[list[int], Tensor, list[Tensor]]]:
    texts = [_text(target, seed) for seed in range(3)]
    decoded = [(ids, *_one_by_one(target, ids)) for ids in texts]
    target.spread(True)
    return decoded


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_any_batch_gives_the_bits_of_decoding_alone(
    seed: int,
    target: Runner,
    alone: list[tuple[list[int], Tensor, list[Tensor]]],
) -> None:
    """Texts run side by side, each cut into random chunks; every row must match."""
    draw = random.Random(seed)
    leases = [_lease(target, LENGTH) for _ in alone]
    done = [0] * len(alone)
    while any(at < LENGTH for at in done):
        segments, spans = [], []
        for index, (ids, _, _) in enumerate(alone):
            room = LENGTH - done[index]
            rows = min(room, draw.choice([0, 1, 1, 1, 2, 3, 7, 30, 64]))
            if rows:
                chunk = ids[done[index] : done[index] + rows]
                slots = leases[index].slots
                segments.append(Segment(chunk, done[index], slots, wanted=range(rows)))
                spans.append((index, done[index], rows))
        if not segments:
            continue
        logits = target.forward(segments).logits
        for index, start, rows in spans:
            assert torch.equal(logits[:rows], alone[index][1][start : start + rows])
            logits = logits[rows:]
            done[index] += rows
    for lease, (_, _, cache) in zip(leases, alone, strict=True):
        for mine, reference in zip(_cache(target, lease, LENGTH), cache, strict=True):
            assert torch.equal(mine, reference)
        lease.release()


@settings(max_examples=6)
@given(data=st.data())
def test_tree_nodes_have_the_bits_of_their_path_decoded_alone(
    data: st.DataObject, target: Runner
) -> None:
    """A random tree on a random prefix, next to another sequence, against each path by itself."""
    prefix = _text(target, data.draw(st.integers(0, 9)), data.draw(st.integers(1, 100)))
    tree = TokenTree(prefix[-1])
    for _ in range(data.draw(st.integers(1, 14))):
        tree.add(data.draw(st.integers(0, len(tree) - 1)), data.draw(st.integers(3, 40)))
    start = len(prefix) - 1
    lease, other = _lease(target, start + tree_positions(tree)), _lease(target, 40)
    if start:
        target.forward([Segment(prefix[:-1], 0, lease.slots, wanted=[])])
    segment = Segment(tree.ids, start, lease.slots, tree=tree, wanted=range(len(tree)))
    beside = Segment(_text(target, 11, 40), 0, other.slots, wanted=[])
    logits = target.forward([beside, segment]).logits
    other.release()
    for node in range(len(tree)):
        path = [tree.ids[n] for n in (0, *tree.path(node))]
        rows = target.forward([Segment(path, start, lease.slots, wanted=[len(path) - 1])]).logits
        assert torch.equal(logits[node], rows[0]), f"node {node} of {tree.parents}"
    lease.release()


@given(st.integers(0, 100_000))
def test_key_width_covers_the_position_and_wastes_at_most_half(position: int) -> None:
    width = key_width(position)
    assert width > position
    assert width <= max(64, 1.5 * (position + 1))
    assert width % 32 == 0
