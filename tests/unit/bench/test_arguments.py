"""What an option may not be is said by the program's parser, before anything starts."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from bench import fleet, lengths, pool_warmth, pools, telemetry, turns, window_cost
from bench.arguments import at_least, fraction, known_method, several, some_seconds


def test_what_is_right_is_read() -> None:
    assert at_least(0)("0") == 0
    assert some_seconds("0.5") == 0.5
    assert fraction("1") == 1.0
    assert known_method("draft+ngram") == "draft+ngram"
    assert several(at_least(1))("8, 1,8") == (8, 1)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (at_least(1), "0"),
        (at_least(1), "x"),
        (some_seconds, "0"),
        (some_seconds, "nan"),
        (some_seconds, "soon"),
        (fraction, "1.1"),
        (fraction, "x"),
        (known_method, "draft+foo"),
        (several(at_least(1)), "1,,2"),
    ],
)
def test_what_is_wrong_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be"):
        read(text)


@pytest.mark.parametrize(
    ("main", "given"),
    [
        (fleet.main, ["0"]),
        (lengths.main, ["--texts", "0"]),
        (lengths.main, ["--methods", "foo"]),
        (lengths.main, ["--tokens", "128,-1"]),
        (pool_warmth.main, ["--repetitions", "0"]),
        (pools.main, ["--turn", "0"]),
        (telemetry.main, ["--repetitions", "0"]),
        (telemetry.main, ["--round-ratio", "2"]),
        (turns.main, ["--turns", "0"]),
        (window_cost.main, ["--max-tokens", "1"]),
        (window_cost.main, ["/nowhere"]),
    ],
)
def test_programs_say_what_is_wrong(
    main: Callable[[list[str]], None], given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
