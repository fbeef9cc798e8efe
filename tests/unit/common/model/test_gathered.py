"""Keys of texts that are gathered: in groups that memory holds, and in the cache's own type."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.model import gathered
from common.model.gathered import MOST_BYTES, Gathered, groups

CPU = torch.device("cpu")


@given(
    ends=st.lists(st.integers(1, 200_000), min_size=1, max_size=40), row_bytes=st.integers(1, 8192)
)
def test_groups_fit_and_have_every_text_once(ends: list[int], row_bytes: int) -> None:
    """Only one that is too long for any has its own, and none could be in the one before."""
    found = groups([end * row_bytes for end in ends], CPU)
    assert sorted(chain(*found)) == list(range(len(ends)))
    lengths = [[ends[text] for text in group] for group in found]
    assert [*chain(*lengths)] == sorted(ends)
    for each in lengths:
        assert len(each) == 1 or len(each) * max(each) * row_bytes <= MOST_BYTES
    for one, other in pairwise(lengths):
        assert (len(one) + 1) * other[0] * row_bytes > MOST_BYTES


def test_a_long_text_does_not_widen_short_ones() -> None:
    """As of a head of 8 times 128 in bfloat16."""
    ends = [100] * 16 + [128_000] + [100] * 15
    assert groups([end * 4096 for end in ends], CPU) == [
        [text for text in range(32) if text != 16],
        [16],
    ]


@pytest.mark.parametrize(("end", "asked", "found"), [(4096, 0, 1), (8192, 1, 1), (32768, 1, 4)])
def test_a_device_with_room_has_larger_groups(
    end: int, asked: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked only where it matters."""
    asks = []

    def gathered_bytes(device: torch.device, least: int) -> int:
        asks.append(device)
        return 2 * least

    monkeypatch.setattr(gathered, "gathered_bytes", gathered_bytes)
    assert len(groups([end * 4096] * 16, CPU)) == found
    assert asks == [CPU] * asked


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_keys_stay_as_they_are_in_the_cache(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of 16 bits are added up in float32, and chances made of those."""
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    def product(one: Tensor, other: Tensor) -> Tensor:
        seen.append((one.dtype, other.dtype))
        return one.float() @ other.float()

    monkeypatch.setattr(gathered, "_product", product)
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(20, 2, 12, generator=generator).to(dtype)
    texts = [torch.randperm(20, generator=generator)[:length].numpy() for length in (7, 3)]
    queries = torch.randn(3, 4, 6, generator=generator)
    aside = torch.randn(3, 2, 2, 12, generator=generator)
    found = Gathered(cache, texts, dtype).attended(queries, [0, 1, 1], aside)
    assert seen == [(dtype, dtype)] * 2
    assert found.dtype == torch.float32
    wanted = Gathered(cache, texts, torch.float32).attended(queries, [0, 1, 1], aside)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_values_may_be_shorter_than_keys() -> None:
    """As if they were as long, and zeros behind."""
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(20, 2, 6 + 4, generator=generator)
    texts = [torch.randperm(20, generator=generator)[:length].numpy() for length in (7, 3)]
    queries = torch.randn(3, 4, 6, generator=generator)
    aside = torch.randn(3, 2, 2, 6 + 4, generator=generator)
    found = Gathered(cache, texts, cache.dtype, key_size=6).attended(queries, [0, 1, 1], aside)
    wide, beside = (F.pad(each, (0, 2)) for each in (cache, aside))
    wanted = Gathered(wide, texts, cache.dtype).attended(queries, [0, 1, 1], beside)
    assert found.shape == (3, 4 * 4)
    torch.testing.assert_close(found.view(3, 4, 4), wanted.view(3, 4, 6)[..., :4])
    assert not wanted.view(3, 4, 6)[..., 4:].any()
