"""Chunks on a terminal."""

from __future__ import annotations

import dataclasses
import io

import paceline
import pytest
from paceline.cli.render import COLORS, RESET, ChunkPrinter, legend, stats_line, visible

GREEN, YELLOW, CYAN = (COLORS[source] for source in ("accepted", "recovered", "bonus"))
RESULT = paceline.Result(
    text="",
    token_ids=(),
    finish_reason="stop",
    stop=None,
    usage=paceline.Usage(prompt_tokens=3, completion_tokens=40, cached_tokens=0),
    speculation=paceline.Speculation(
        method="draft",
        acceptance="coupled",
        rounds=10,
        drafted_tokens=40,
        accepted_tokens=30,
        accepted_per_position=(10, 10, 10, 0),
        acceptance_rate=0.75,
        mean_accepted_length=4.0,
        lossy=False,
    ),
    seed=7,
    request_id="r",
    model="m",
)


def rendered(chunks: list[paceline.Chunk], color: bool) -> str:
    out = io.StringIO()
    printer = ChunkPrinter(out, color=color)
    for chunk in chunks:
        printer.print(chunk)
    return out.getvalue()


def test_colours_say_how_tokens_came_and_held_back_text_keeps_its_own() -> None:
    chunks = [
        paceline.Chunk("ab", (1, 2), ("recovered", "accepted"), (1, 1)),
        paceline.Chunk("", (3,), ("accepted",), (0,)),
        paceline.Chunk("", (4,), ("bonus",), (0,)),
        paceline.Chunk("c", (), ()),
    ]
    assert rendered(chunks, color=True) == f"{YELLOW}a{RESET}{GREEN}b{RESET}{CYAN}c{RESET}"
    assert rendered(chunks, color=False) == "abc"


def test_an_unknown_source_has_no_colour() -> None:
    assert rendered([paceline.Chunk("a", (1,), ("unspecified",), (1,))], color=True) == "a"


@pytest.mark.parametrize("text", ["", "a", "a\n"])
def test_a_line_begun_on_a_terminal_is_left_before_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    printer = ChunkPrinter(out, color=False)
    printer.print(paceline.Chunk(text, (1,), ("bonus",), (len(text),)))
    printer.end_line()
    assert out.getvalue() == text
    monkeypatch.setattr(out, "isatty", lambda: True)
    printer.end_line()
    assert out.getvalue() == ("a\n" if text else "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;cm0gLXJmIH4K\x07", r"\x1b]52;c;cm0gLXJmIH4K\x07"),
        ("\x9b2J \x7f \x00 \r", r"\x9b2J \x7f \x00 \x0d"),
        ("a\tb\nÄ語😀\xa0", "a\tb\nÄ語😀\xa0"),
    ],
)
@pytest.mark.parametrize("color", [True, False])
def test_a_model_gives_a_terminal_no_commands(text: str, shown: str, color: bool) -> None:
    chunk = paceline.Chunk(text, (1,), ("accepted",), (len(text),))
    screen, pipe = Terminal(), io.StringIO()
    for out in (screen, pipe):
        ChunkPrinter(out, color=color).print(chunk)
    before, after = (GREEN, RESET) if color else ("", "")
    assert screen.getvalue() == before + shown + after
    assert pipe.getvalue() == before + text + after
    assert visible(text, screen) == shown
    assert visible(text, pipe) == visible(text, None) == text


def test_the_legend_names_every_colour() -> None:
    assert all(f"{color}{source}{RESET}" in legend() for source, color in COLORS.items())


def test_the_statistics_fit_one_line() -> None:
    assert stats_line(RESULT, 0.5) == (
        "40 tokens in 0.50 s · 80.0 tokens/s · method draft · mean accepted length 4.00 · "
        "acceptance rate 75% (coupled) · seed 7"
    )


def test_plain_decoding_has_no_acceptance_rate_and_lossy_says_so() -> None:
    ran = dataclasses.replace(RESULT.speculation, drafted_tokens=0, lossy=True)
    line = stats_line(dataclasses.replace(RESULT, speculation=ran), 0.0)
    assert "acceptance rate" not in line
    assert "lossy" in line
