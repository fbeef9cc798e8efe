"""What is said where there is no memory left."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

from common.errors import ModelError
from common.model.pages import LargePages
from common.model.room import give_back, ran_out, room_for


@pytest.mark.parametrize("bytes_", [1 << 58, 1 << 62])
def test_memory_that_is_not_there_is_told_from_other_errors(bytes_: int) -> None:
    for ask in (torch.empty, LargePages().zeros):
        with (
            pytest.raises(
                ModelError, match=rf"^no room for a shelf: .*{bytes_} bytes.* \(a saw\)$"
            ),
            room_for("a shelf", "a saw"),
        ):
            ask((bytes_,), dtype=torch.uint8)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="crooked"), room_for("a shelf", "a saw"):
        raise ValueError("crooked")
    assert not ran_out(OSError("crooked"))
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory."))


def test_what_is_free_between_blocks_in_use_is_given_back() -> None:
    """As between matrices that were rounded one after another."""
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    blocks = [torch.ones(1 << 14) for _ in range(1000)]  # of 64 KiB
    del blocks[::2]
    before = _resident()
    give_back()
    assert before - _resident() > 16 << 20
    assert all(block[0] == 1 for block in blocks)


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
