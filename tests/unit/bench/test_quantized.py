"""What the comparison of rounded weights reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.quantized import read_text
from common.errors import StartupError


def test_a_text_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"/missing: cannot be read: No such file"):
        read_text(tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(StartupError, match=r"/bytes: cannot be read: 'utf-8' codec"):
        read_text(tmp_path / "bytes")
