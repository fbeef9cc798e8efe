"""What is said where there is no memory left."""

from __future__ import annotations

import pytest
import torch

from common.errors import ModelError
from common.model.pages import LargePages
from common.model.room import ran_out, room_for


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
