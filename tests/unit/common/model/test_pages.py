"""Tensors on large pages."""

from __future__ import annotations

import gc

import torch

from common.model.pages import LargePages


def test_a_copy_stays_what_it_is_however_many_follow() -> None:
    pages = LargePages()
    generator = torch.Generator().manual_seed(0)
    originals = [torch.randint(-99, 99, (3, 7 * size), generator=generator) for size in (1, 9, 80)]
    originals += [torch.randn(5, 4, generator=generator).bfloat16().T, torch.empty(0, 3)]
    copies = [pages.copy(original) for original in originals]
    for original, copied in zip(originals, copies, strict=True):
        assert torch.equal(original, copied)
        assert copied.is_contiguous()
        assert copied.data_ptr() % 64 == 0 or not copied.numel()


def test_what_is_larger_than_a_chunk_gets_one_of_its_own() -> None:
    pages = LargePages()
    small, large = torch.arange(10), torch.arange(9 << 20)
    copies = [pages.copy(small), pages.copy(large), pages.copy(small)]
    del pages
    gc.collect()
    assert torch.equal(copies[0], small)
    assert torch.equal(copies[1], large)
    assert torch.equal(copies[2], small)


def test_zeros_are_zero_and_apart() -> None:
    pages = LargePages()
    first, second = pages.zeros((3, 5), torch.bfloat16), pages.zeros((2, 2, 2), torch.float32)
    first.fill_(1)
    assert second.shape == (2, 2, 2)
    assert not second.any()
    assert pages.zeros((0, 4), torch.int64).shape == (0, 4)
