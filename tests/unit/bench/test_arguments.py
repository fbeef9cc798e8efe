"""What an option may not be is said by the program's parser, before anything starts."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest
from paceline.errors import InvalidArgumentError as ClientInvalidArgument

from bench import fleet, lengths, pool_warmth, telemetry, turns, window_cost
from bench.arguments import (
    at_least,
    ending_well,
    known_method,
    several,
    some_seconds,
    within,
)
from common.errors import InvalidArgument


def test_what_is_right_is_read() -> None:
    assert at_least(0)("0") == 0
    assert some_seconds("0.5") == 0.5
    assert within(0, 1)("1") == 1.0
    assert known_method("draft+ngram") == "draft+ngram"
    assert several(at_least(1))("8, 1,,08,") == (8, 1)
    assert several(within(0, 9))("") == ()


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (at_least(1), "0"),
        (at_least(1), "x"),
        (some_seconds, "0"),
        (some_seconds, "nan"),
        (some_seconds, "soon"),
        (at_least(1), "1.5"),
        (within(0, 1), "1.1"),
        (within(0, 1), "-0.1"),
        (within(0, 1), "nan"),
        (within(0, 1), "x"),
        (known_method, "draft+foo"),
        (several(at_least(1)), "1,0"),
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
        (telemetry.main, ["--repetitions", "0"]),
        (telemetry.main, ["--round-ratio", "2"]),
        (turns.main, ["--turns", "0"]),
        (window_cost.main, ["--max-tokens", "1"]),
    ],
)
def test_programs_say_what_is_wrong(
    main: Callable[[list[str]], None], given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (
            InvalidArgument("token_ids", "must have at most 9"),
            "error: token_ids: must have at most 9",
        ),
        (ClientInvalidArgument("too long"), "error: too long"),
        (FileNotFoundError("no such model"), "error: no such model"),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_program_ends_in_one_line(problem: BaseException, code: object) -> None:
    with pytest.raises(SystemExit) as ended, ending_well():
        raise problem
    assert ended.value.code == code
