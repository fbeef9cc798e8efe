"""The bench of shared pools runs, and says what it measured."""

from __future__ import annotations

import pytest

from bench import pools


def test_it_measures_every_way_to_share(capsys: pytest.CaptureFixture[str]) -> None:
    pools.main(["--seconds", "0.4", "--turn", "0.2", "--rate", "2000"])
    lines = capsys.readouterr().out.splitlines()
    names = [line[:24].strip() for line in lines if not line.startswith("  ")]
    assert names[1:] == [
        "no shared pool",
        "in this process",
        "store, 0 a second",
        "store, 2000 a second",
    ]
    assert "n-grams of other sequences a second" in lines[-2]
    assert "within their 512 KiB" in lines[-1]
