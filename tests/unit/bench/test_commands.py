from __future__ import annotations

from typing import Any

import pytest
import typer

from bench.commands import bench, contenders, counts, delays, several_methods, words
from launcher.commands import DraftQuantize, Quantize


def test_lists_are_split_at_commas() -> None:
    assert words("plain, draft+ngram,") == ("plain", "draft+ngram")
    assert contenders("engine,lookup") == ("engine", "lookup")
    assert several_methods("draft, draft+ngram") == ("draft", "draft+ngram")
    assert counts("1,8") == (1, 8)
    assert counts("") == ()
    assert delays("0, 2.5") == (0.0, 2.5)


@pytest.mark.parametrize("text", ["0", "-1", "a", "1.5"])
def test_a_concurrency_is_a_number_above_zero(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be"):
        counts(text)


@pytest.mark.parametrize("text", ["-1", "x", "1001", "nan"])
def test_a_round_trip_is_a_sensible_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be"):
        delays(text)


def test_a_contender_is_one_there_is() -> None:
    with pytest.raises(typer.BadParameter, match=r"--peers: must be of engine, .* got sglang"):
        contenders("engine,sglang")
    with pytest.raises(typer.BadParameter, match=r"--methods: must be of plain, .* got foo, bar"):
        several_methods("plain,draft+foo,bar")


@pytest.mark.parametrize(
    "rounding", [{"quantize": Quantize.INT8}, {"draft_quantize": DraftQuantize.INT4}]
)
def test_a_roofline_is_of_weights_as_they_are_stored(rounding: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter, match="as they are stored"):
        bench(show_roofline=True, **rounding)
