"""Text on standard output."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from common.printing import shown


def test_what_standard_output_cannot_show_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert shown("5e88… tokens") == 0
    assert out.buffer.getvalue() == b"5e88? tokens\n"


def test_what_nobody_reads_to_its_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert shown("tokens") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_what_finds_no_room_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert shown("tokens") == 1
    told = "error: cannot write the output: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == told
