"""The bench of conversations: from the second turn on the history is there already."""

from __future__ import annotations

import json

import pytest

from bench import turns


def test_later_turns_compute_only_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    turns.main(["--turns", "3", "--conversations", "1", "--max-tokens", "4", "--json"])
    told = json.loads(capsys.readouterr().out)
    new = [turn["prompt_tokens"] - turn["cached_tokens"] for turn in told]
    assert new[0] == 65
    assert all(computed <= 64 + 2 * 16 for computed in new[1:])
    assert [turn["prompt_tokens"] for turn in told] == [65, 133, 201]
