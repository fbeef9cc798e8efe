"""What entered layers of a model, and its last state, is handed out: that of `transformers`, of
each row of a pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from common.errors import ModelError
from common.model import kernels
from common.model.fused import FusedModel
from common.model.hf.taps import Taps
from common.model.linear import packed_products
from common.model.loader import Dtype, load
from common.model.native import NativeModel, instructions
from common.model.roll import RollOptions
from common.model.runner import Runner
from common.model.segment import Segment, tree_positions
from common.model.tree import TokenTree
from tests import tiny_models
from tests.tiny_models import ARCHITECTURES, VOCAB

TAPS = (0, 2, 4)
LAYERS = {"num_hidden_layers": 4}
KV_BYTES = 8 << 20
HIDDEN = 48
TOLERANCES: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.15}
"""How long the error of a row may be, where what entered a layer is as long as 1."""


class Target(NamedTuple):
    """A model that is tapped, and its like that is not."""

    runner: Runner
    plain: Runner
    expected: Callable[[Sequence[int]], Tensor]
    """Features of a text, by `transformers` in float32. # [T, taps * hidden]"""
    tolerance: float


@pytest.fixture(
    scope="module",
    params=[
        "llama-float32",
        "llama-bfloat16",
        "llama-bfloat16-threads",
        "qwen3-float32",
        "mistral-bfloat16",
        "granite-float32",
        "gemma4_text-float32",
        "llama-float32-fused",
        "llama-bfloat16-fused",
        "qwen3-bfloat16-fused",
        "mistral-float32-fused",
        "granite-float32-fused",
        "gemma2-float32-fused",
        "gemma2-bfloat16-fused",
    ],
)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """A tiny model of four layers in a type; not by compiled code, or with two threads."""
    kind, dtype, *how = request.param.split("-")
    directory = tiny_models.save(kind, tmp_path_factory.mktemp(kind), **LAYERS)
    before = torch.get_num_threads()
    torch.set_num_threads(2 if how == ["threads"] else 1)
    with pytest.MonkeyPatch.context() as patch:
        if how == ["fused"]:
            patch.setattr(kernels, "can_run", lambda model: False)
        tapped, plain = (load(str(directory), dtype=dtype, device="cpu") for _ in range(2))
    ours = packed_products(getattr(torch, dtype)) if how == ["fused"] else instructions()
    if kind != "gemma2" and ours:
        assert isinstance(tapped.forward, FusedModel if how == ["fused"] else NativeModel)
    runner = Runner(tapped, kv_bytes=KV_BYTES, taps=TAPS)
    plainly = Runner(plain, kv_bytes=KV_BYTES)
    yield Target(runner, plainly, _reference(directory, TAPS), TOLERANCES[dtype])
    torch.set_num_threads(before)


def _reference(directory: Path, taps: Sequence[int]) -> Callable[[Sequence[int]], Tensor]:
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )

    @torch.no_grad()
    def expected(ids: Sequence[int]) -> Tensor:
        found = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        return torch.cat([found.hidden_states[tap][0] for tap in taps], dim=1)

    return expected


def _text(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def _slots(runner: Runner, positions: int) -> np.ndarray:
    return runner.pool.lease(positions).slots


def _features(runner: Runner, segments: Sequence[Segment]) -> Tensor:
    found = runner.forward(segments).features
    assert found is not None
    assert found.dtype == runner.loaded.dtype
    assert len(found) == sum(len(segment.ids) for segment in segments)
    return found


def _far(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    error, whole = (each.view(-1, HIDDEN).norm(dim=1) for each in (found - expected, expected))
    return float((error / whole).max())


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_any_model_can_be_tapped(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tiny_models.save(kind, tmp_path)
    loaded = load(str(directory), dtype="float32", device="cpu")
    runner = Runner(loaded, kv_bytes=KV_BYTES, taps=(0, 1, 2))
    ids = _text(0, 50)
    slots = _slots(runner, len(ids))
    first = _features(runner, [Segment(ids[:33], 0, slots, wanted=[])])
    second = _features(runner, [Segment(ids[33:], 33, slots, wanted=[16])])
    expected = _reference(directory, (0, 1, 2))(ids)
    assert _far(torch.cat((first, second)), expected) < TOLERANCES["float32"]

    monkeypatch.setattr(Runner, "_settle", lambda self: None)  # as above
    again = Runner(loaded, kv_bytes=KV_BYTES)
    assert again.forward([Segment([5], 0, _slots(again, 1), wanted=[0])]).features is None


def test_what_nobody_wants_of_a_pass_is_not_handed_out(target: Target) -> None:
    """And is again in the next; what else the pass has to say are the same bits."""
    ids, runner = _text(1, 9), target.runner
    segment = Segment(ids, 0, _slots(runner, len(ids)), wanted=[8])
    features, logits = _features(runner, [segment]), runner.forward([segment]).logits
    without = runner.forward([segment], tap=False)
    assert without.features is None
    assert torch.equal(without.logits, logits)
    assert torch.equal(_features(runner, [segment]), features)


def test_rows_of_texts_and_trees_come_in_the_order_of_segments(target: Target) -> None:
    """Whichever rows are wanted: the end of a text, a beginning, and a tree behind a third."""
    runner = target.runner
    texts = [_text(seed, length) for seed, length in enumerate((45, 18, 31))]
    tree = TokenTree.chain(texts[2][-1], (11, 12))
    tree.add_path((21, 12, 5))
    tree.add_path((11, 33))
    start = len(texts[2]) - 1
    slots = [_slots(runner, length) for length in (45, 18, start + tree_positions(tree))]
    begun = [
        Segment(texts[0][:17], 0, slots[0], wanted=[]),
        Segment(texts[2][:start], 0, slots[2], wanted=[]),
    ]
    whole = [target.expected(text) for text in texts]
    found = _features(runner, begun)
    assert _far(found, torch.cat((whole[0][:17], whole[2][:start]))) < target.tolerance

    rest = [
        Segment(texts[0][17:], 17, slots[0], wanted=[27]),
        Segment(tree.ids, start, slots[2], tree=tree, wanted=[3, 0]),
        Segment(texts[1], 0, slots[1], wanted=[]),
    ]
    paths = [[tree.ids[node] for node in tree.path(node)] for node in range(len(tree))]
    nodes = [target.expected(texts[2] + path)[-1:] for path in paths]
    found = _features(runner, rest)
    assert _far(found, torch.cat((whole[0][17:], *nodes, whole[1]))) < target.tolerance


def test_bits_are_those_of_rows_alone_and_logits_those_without_taps(target: Target) -> None:
    """Of texts side by side in random chunks, of which threads may take parts of their own."""
    runners, draw, length = target[:2], random.Random(3), 40
    texts = [_text(seed, length) for seed in range(4)]
    alone = [_alone(target.runner, ids) for ids in texts]
    places = [[_slots(runner, length) for _ in texts] for runner in runners]
    done = [0] * len(texts)
    kept: list[tuple[Tensor, Tensor]] = []
    while min(done) < length:
        rows = draw.choices([1, 2, 4, 9, 16], k=draw.choice([1, 4])) * 4  # alike, or not
        spans = [(at, min(at + more, length)) for at, more in zip(done, rows, strict=False)]
        batches: list[list[Segment]] = [[], []]
        for text, (at, end) in enumerate(spans):
            if at < end:
                wanted = range(draw.choice([0, end - at - 1]), end - at)
                for batch, slots in zip(batches, places, strict=True):
                    batch.append(Segment(texts[text][at:end], at, slots[text], wanted=wanted))
        one, other = (each.forward(some) for each, some in zip(runners, batches, strict=True))
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.states, other.states)
        assert other.features is None
        assert one.features is not None
        parts = [alone[text][at:end] for text, (at, end) in enumerate(spans)]
        kept.append((one.features, torch.cat(parts)))
        done = [end for _, end in spans]
    for found, expected in kept:  # also now that other passes have run
        assert torch.equal(found, expected)


def _alone(runner: Runner, ids: Sequence[int]) -> Tensor:
    """Features of a text, token by token. # [T, taps * hidden]"""
    slots = _slots(runner, len(ids))
    rows = [
        _features(runner, [Segment([token], at, slots, wanted=[])]) for at, token in enumerate(ids)
    ]
    return torch.cat(rows)


def test_rolls_are_as_without_taps(target: Target) -> None:
    if not target.runner.rolls:
        pytest.skip("no rolls here")
    found = []
    for runner in target[:2]:
        slots = _slots(runner, 20)
        segment = Segment(_text(1, 12), 0, slots, wanted=[11])
        found.append(runner.roll([segment], slots[12:16, None], RollOptions(2)))
        assert found[-1].output is None or found[-1].output.features is None
    assert np.array_equal(found[0].ids, found[1].ids)
    assert np.array_equal(found[0].behind, found[1].behind)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("taps", [(-1,), (0, 3), (1, 0), (1, 1)])
def test_what_cannot_be_tapped_is_refused(kind: str, taps: tuple[int, ...], tmp_path: Path) -> None:
    loaded = load(str(tiny_models.save(kind, tmp_path / "tiny")), device="cpu")
    refusal = rf"^tiny cannot be tapped at layers \[{taps[0]}.*must rise, from 0 to 2$"
    with pytest.raises(ModelError, match=refusal):
        Runner(loaded, kv_bytes=KV_BYTES, taps=taps)


def test_models_whose_layers_are_not_found_are_served_but_not_tapped(tmp_path: Path) -> None:
    loaded = load(str(tiny_models.save("gpt2", tmp_path / "odd")), device="cpu")
    inner: Any = loaded.forward
    inner._model.transformer.h = nn.Sequential(*inner._model.transformer.h)
    with pytest.raises(ModelError, match=r"^odd cannot be served .* layers are not found$"):
        Runner(loaded, kv_bytes=KV_BYTES, taps=[1])
    runner = Runner(loaded, kv_bytes=KV_BYTES)
    assert runner.forward([Segment([5], 0, _slots(runner, 1), wanted=[0])]).features is None


class _Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer_idx = layer

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.add_(1)


class _Stack(nn.Module):
    """Layers that add to their input in place, beside as many of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.others = nn.ModuleList(nn.Identity() for _ in range(3))
        self.layers = nn.ModuleList(nn.Sequential(_Attention(layer)) for layer in range(3))


def test_inputs_of_layers_are_kept_as_they_were() -> None:
    """Of the pass that was begun last, where the one before it failed."""
    model, x = _Stack(), torch.zeros(1, 4, 8)
    taps = Taps(model)
    taps.begin((0, 2))
    model.layers[0](x)
    taps.begin((0, 2))
    for layer in model.layers:
        layer(x)
    found = taps.take(4)
    assert found is not None
    assert found.tolist() == [[1.0] * 8 + [3.0] * 8] * 4
    taps.begin(())
    model.layers[0](x)
    assert taps.take(4) is None


def test_layers_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that are tapped may come and go."""
    model = _Stack()
    taps = Taps(model)
    taps.begin((0, 2))
    monkeypatch.setattr(model, "modules", None)
    for wanted in ((), (0, 2)):
        taps.begin(wanted)
    for layer in model.layers:
        layer(torch.zeros(1, 4, 8))
    assert taps.take(4) is not None


@pytest.mark.parametrize("shape", [(2, 4, 8), (1, 3, 8), (4, 8), (1, 1, 4, 8)])
def test_layers_that_read_something_else_than_rows_are_not_tapped(shape: tuple[int, ...]) -> None:
    model = _Stack()
    taps = Taps(model)
    taps.begin((1,))
    model.layers[1](torch.zeros(shape))
    with pytest.raises(ModelError, match=r"^_Stack cannot be tapped: its layers read no rows"):
        taps.take(4)
