"""Kernels draw what torch and the CPU's compiled code do; interpreted where there is no GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.model import sampling
from common.model.adjust import adjust_at_once
from common.model.row import Row
from common.model.sampling import Ranked, rank, sample
from common.sampling_params import SamplingParams
from tests.unit.common.model.rows import VOCAB, random_logits, rows_strategy

pytest.importorskip("triton")

from common.model.cuda import device, draw, probe
from common.model.cuda.drawings import ADJUSTING, WORDS, packed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """A row is several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "_TOKENS", 128)
        patch.setattr(draw, "_QUADS", 32)
        yield


def _drawn(logits: Tensor, rows: list[Row], count: int) -> list[Ranked]:
    """What the kernels say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "drawer", lambda device: draw.draw)
        here = [
            row._replace(seen=None if row.seen is None else row.seen.to(DEVICE)) for row in rows
        ]
        ranked = rank(logits.to(DEVICE), here, count)
        ids = sample(logits.to(DEVICE), here)
    assert [one.ids[0] for one in ranked] == ids.tolist()
    return ranked


@settings(max_examples=15)
@given(
    st.lists(rows_strategy, min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_choices_are_those_of_torch(
    rows: list[Row], seed: int, count: int, dtype: torch.dtype
) -> None:
    logits = random_logits(len(rows), VOCAB, seed, dtype)
    for one, other in zip(_drawn(logits, rows, count), rank(logits, rows, count), strict=True):
        assert one.ids[0] == other.ids[0]
        assert one.behind == pytest.approx(other.behind, rel=1e-5, abs=1e-5)
        if len({*other.behind}) == len(other.behind):  # else torch has them in any order
            assert one.ids == other.ids


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.3}, {"top_k": 5, "top_p": 0.5}])
@pytest.mark.parametrize("seed", range(2))
def test_of_equal_ones_those_with_the_lowest_ids_survive(cut: dict[str, float], seed: int) -> None:
    """But for top-k, which keeps all that equal its last."""
    kinds = torch.randint(0, 4, (3, 100), generator=torch.Generator().manual_seed(seed))
    rows = [Row(SamplingParams(temperature=1.0, seed=seed, **cut), place) for place in range(3)]
    drawn, expected = _drawn(kinds.float(), rows, 4), rank(kinds.float(), rows, 4)
    assert [one.ids for one in drawn] == [one.ids for one in expected]


def test_top_k_may_reach_to_the_least_logits() -> None:
    """What is read behind the end of a row comes after all of it."""
    logits = -random_logits(3, 150, 1, torch.float32).abs()
    logits[:2, ::2] = -math.inf
    rows = [Row(SamplingParams(temperature=1.0, top_k=k, seed=k), 3) for k in (75, 76, 149)]
    drawn, expected = _drawn(logits, rows, 4), rank(logits, rows, 4)
    assert [one.ids for one in drawn] == [one.ids for one in expected]


def test_a_row_alone_is_the_row_in_any_batch() -> None:
    """Down to the bits of what is told of it."""
    rows = [
        Row(SamplingParams(temperature=0.3 + place, top_p=0.9, top_k=place * 20, seed=9), place)
        for place in range(5)
    ]
    logits = random_logits(5, VOCAB, 4, torch.bfloat16)
    together = _drawn(logits, rows, 3)
    assert together == [_drawn(logits[i : i + 1], rows[i : i + 1], 3)[0] for i in range(5)]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.5}])
def test_a_broken_row_harms_no_other(broken: float, cut: dict[str, float]) -> None:
    logits = torch.full((2, 40), broken)
    logits[1] = random_logits(1, 40, 1, torch.float32)
    rows = [Row(SamplingParams(temperature=1.0, seed=1, **cut), 4)] * 2
    drawn = _drawn(logits, rows, 1)
    assert 0 <= drawn[0].ids[0] < 40
    assert drawn[1] == _drawn(logits[1:], rows[1:], 1)[0]


def test_a_broken_greedy_row_is_the_same_beside_others() -> None:
    logits = random_logits(2, 40, 1, torch.float32)
    logits[0, 7] = math.nan
    rows = [Row(SamplingParams(), 4), Row(SamplingParams(temperature=1.0), 4)]
    assert _drawn(logits, rows, 1)[0] == _drawn(logits[:1], rows[:1], 1)[0]


def test_rows_of_a_larger_vocabulary_may_be_cut() -> None:
    logits = random_logits(3, 64, 2, torch.float32)
    rows = [Row(SamplingParams(temperature=0.9, seed=3), place) for place in range(3)]
    assert _drawn(logits[:, :50], rows, 2) == _drawn(logits[:, :50].contiguous(), rows, 2)


def test_nothing_is_drawn_for_padding() -> None:
    drawings = packed([Row(SamplingParams(temperature=0.9), 3).drawing], rows=3).to(DEVICE)
    ids = torch.full((3, 2), 99, device=DEVICE)
    draw.draw(random_logits(3, 40, 2, torch.float32).to(DEVICE), drawings, ids, ids.float())
    assert (ids == 99).tolist() == [[False] * 2, [True] * 2, [True] * 2]


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # numpy's, of infinity
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_changed_to_the_bits_that_torch_has(dtype: torch.dtype) -> None:
    """Also where they are no numbers, beside rows of which all or nothing changes."""
    strange = {0: math.inf, 1: -math.inf, 2: -1e9, 3: 0.0, 4: 2.5, VOCAB - 1: 7.7}
    changes = [
        {"logit_bias": strange, "repetition_penalty": 1.3},
        {},
        {"repetition_penalty": 0.7},
        {"logit_bias": dict.fromkeys(range(VOCAB), 0.1)},
        {"logit_bias": strange, "repetition_penalty": 1e-3},
    ]
    logits = random_logits(len(changes), VOCAB, 5, dtype)
    logits[:, 100:105] = torch.tensor([-0.0, 0.0, math.inf, -math.inf, math.nan])
    generator = torch.Generator().manual_seed(5)
    rows = [
        Row(SamplingParams(**change), 3, torch.rand(VOCAB, generator=generator) < 0.5, (9, 9, 150))
        for change in changes
    ]
    expected = logits.to(torch.float32, copy=True)
    adjust_at_once(expected, rows)
    here = [row._replace(seen=row.seen.to(DEVICE)) for row in rows if row.seen is not None]
    drawings = packed([row.drawing for row in here]).to(DEVICE)
    found = torch.zeros(expected.shape, device=DEVICE)
    places = torch.zeros_like(found, dtype=torch.int64)
    grid = len(rows), -(-VOCAB // 128)
    draw._score[grid](logits.to(DEVICE), drawings, found, places, VOCAB, QUADS=32)
    most = torch.finfo(torch.float32).max
    expected.nan_to_num_(-most, most, -most)
    assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32))


def test_other_draws_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_VOCAB", 100)
    monkeypatch.setattr(probe, "_DRAWS", 20)
    assert probe.fault_of_draws(DEVICE) == ""

    def unchanged(logits: Tensor, drawings: Tensor, ids: Tensor, behind: Tensor) -> None:
        drawings[: len(ids) * WORDS].view(-1, WORDS)[:, ADJUSTING] = 0
        draw.draw(logits, drawings, ids, behind)

    monkeypatch.setattr(probe, "draw", unchanged)
    assert probe.fault_of_draws(DEVICE).endswith(" of 20 draws are others")

    def lowest(logits: Tensor, drawings: Tensor, ids: Tensor, behind: Tensor) -> None:
        ids.zero_()

    monkeypatch.setattr(probe, "draw", lowest)
    assert probe.fault_of_draws(DEVICE).endswith(" of 20 draws are others")

    def missing(*_: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC")

    monkeypatch.setattr(probe, "draw", missing)
    assert probe.fault_of_draws(DEVICE) == "RuntimeError: Failed to find C compiler."


class _Gpu:
    """A device that is said to be a GPU."""

    type = "cuda"


@pytest.mark.parametrize(
    ("capability", "found", "reason"),
    [
        ((9, 0), "", ""),
        ((7, 5), "", "its compute capability is below 8.0"),
        ((9, 0), "9 of 48 draws are others", "9 of 48 draws are others"),
    ],
)
def test_where_torch_draws_the_log_says_why(
    capability: tuple[int, int],
    found: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu = _Gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.cuda.device_of(torch.empty(0)))
    monkeypatch.setattr(probe, "fault_of_draws", lambda device: found)
    assert (device.drawer(gpu) is None) is bool(reason)  # type: ignore[arg-type]
    assert device.drawn_by(gpu).startswith("draw") is not bool(reason)  # type: ignore[arg-type]
    assert [record.__dict__["reason"] for record in caplog.records] == [reason] * bool(reason)


def test_on_the_cpu_no_kernel_draws() -> None:
    assert device.drawer(torch.device("cpu")) is None
    assert device.drawn_by(torch.device("cpu")) == ""
