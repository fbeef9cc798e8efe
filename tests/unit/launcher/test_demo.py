from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from paceline import Chunk, Model, Result, Speculation, Usage
from rich.console import Console
from tokenizers import Tokenizer

from launcher.colours import ColourPrinter
from launcher.demo import METHODS, PROMPTS, Plan, schedule, summarise
from launcher.timing import Timed, rate, timed


def run(method: str, ids: tuple[int, ...], seconds: float, rounds: int, drafted: int) -> Timed:
    accepted = len(ids) - rounds
    result = Result(
        text="",
        token_ids=ids,
        finish_reason="length",
        stop=None,
        usage=Usage(3, len(ids), 0),
        speculation=Speculation(
            method, "coupled", rounds, drafted, accepted, (), 0.0, 0.0, lossy=False
        ),
        seed=0,
        request_id="",
        model="",
    )
    return Timed(result=result, decoded_tokens=len(ids) - 1, seconds=seconds)


def test_rates_are_total_tokens_over_total_time() -> None:
    runs = [run("plain", (1,) * 11, 1.0, 11, 0), run("plain", (1,) * 31, 3.0, 31, 0)]
    assert rate(runs) == 10.0
    assert rate([]) == 0.0


def test_the_clock_starts_with_the_first_tokens() -> None:
    class Scripted:
        def __iter__(self) -> object:
            yield Chunk("", (), ())
            yield Chunk("a", (1, 2), ("recovered", "accepted"))
            yield Chunk("b", (3,), ("bonus",))
            yield Chunk("c", (), ())

        def result(self) -> Result:
            return run("plain", (1, 2, 3), 1.0, 3, 0).result

    heard: list[str] = []
    done = timed(Scripted(), lambda chunk: heard.append(chunk.text))  # type: ignore[arg-type]
    assert done.decoded_tokens == 1
    assert done.seconds > 0
    assert heard == ["", "a", "b", "c"]


def test_methods_take_turns() -> None:
    plan = Plan(max_tokens=1, repetitions=2)
    methods = [method for _, method in schedule(plan, ["plain", *METHODS])]
    assert methods == ["plain", "draft", "medusa", "eagle"] * len(PROMPTS) * 2


@pytest.mark.parametrize("template", [False, True])
def test_a_model_without_a_chat_template_is_sent_text(template: bool) -> None:
    model = Model("m", 10, 10, ("plain",), True, template, ())
    plan = Plan(max_tokens=1, repetitions=1).fitting(model)
    assert any(prompt.chat for prompt in plan.prompts) is template
    assert [prompt.text for prompt in plan.prompts] == [prompt.text for prompt in PROMPTS]


def test_the_outcome_adds_up() -> None:
    ids = tuple(range(21))
    runs = {
        (PROMPTS[0], "plain"): [run("plain", ids, 2.0, 21, 0)],
        (PROMPTS[0], "draft"): [run("draft", ids, 1.0, 7, 28)],
    }
    outcome = summarise(runs)
    assert outcome.plain_tokens_per_s == 10.0
    (draft,) = outcome.methods
    assert draft.tokens_per_s == 20.0
    assert draft.speedup == 2.0
    assert draft.mean_accepted_length == 3.0
    assert draft.acceptance_rate == 0.5
    assert outcome.same_text
    assert "2.00×" in draft.line()
    assert outcome.lines().endswith("same text: yes")
    assert json.loads(outcome.to_json())["same_text"] is True


def test_one_differing_id_is_noticed() -> None:
    runs = {
        (PROMPTS[0], "plain"): [run("plain", (1, 2, 3), 2.0, 3, 0)],
        (PROMPTS[0], "draft"): [run("draft", (1, 2, 4), 1.0, 1, 2)],
    }
    outcome = summarise(runs)
    assert not outcome.same_text
    assert outcome.lines().endswith("same text: NO")


def test_each_token_has_the_colour_of_how_it_came(demo_target: Path) -> None:
    file = demo_target / "tokenizer.json"
    text = "Once upon a day — ünïcödé ✓"
    ids = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard")
    printer = ColourPrinter(console, file)
    printer(Chunk("", (ids[0],), ("accepted",)))
    printer(Chunk("", tuple(ids[1:]), ("recovered",) * (len(ids) - 1)))
    coloured = out.getvalue()
    assert coloured.startswith("\x1b[32m")
    assert "\x1b[33m" in coloured

    plain = io.StringIO()
    printer = ColourPrinter(Console(file=plain, no_color=True), file)
    for token_id in ids:
        printer(Chunk("", (token_id,), ("accepted",)))
    assert plain.getvalue() == text


def test_a_model_gives_a_terminal_no_commands(
    demo_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = demo_target / "tokenizer.json"
    ids = Tokenizer.from_file(str(file)).encode("a\x1b[2Jb").ids
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    console = Console(file=out, color_system=None)
    ColourPrinter(console, file)(Chunk("", tuple(ids), ("bonus",) * len(ids)))
    assert out.getvalue() == "a\\x1b[2Jb"


def test_turns_are_shown_and_other_special_tokens_are_not(demo_target: Path) -> None:
    file = demo_target / "tokenizer.json"
    ids = Tokenizer.from_file(str(file)).encode("Yes.<|user|>No.<|end|>").ids
    out = io.StringIO()
    ColourPrinter(Console(file=out), file)(Chunk("", tuple(ids), ("bonus",) * len(ids)))
    assert out.getvalue() == "Yes.\nuser: No."
