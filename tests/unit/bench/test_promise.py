"""The sweep of the promise: what it tries, and how it says what it found."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from bench import promise
from bench.differences import Place, Tally
from bench.progress import Progress
from common.errors import StartupError
from launcher.models import Models

OFFERED = ("plain", "draft", "ngram", "lookahead")


def tally(method: str, differing: int = 0) -> Tally:
    found = Tally(method=method, dtype="float32", greedy=2, drawn=2, tokens=40, passes=20)
    if differing:
        found.differing_tokens, found.differing_generations = differing, 1
        found.first = Place(prompt=3, prompt_tokens=18, drawn=True, seed=17, position=5)
    return found


def test_everything_is_every_method_pairs_a_triple_and_auto() -> None:
    assert promise.everything(OFFERED) == (
        "plain",
        "draft",
        "lookahead",
        "ngram",
        "draft+lookahead",
        "draft+ngram",
        "lookahead+ngram",
        "draft+lookahead+ngram",
        "auto",
    )
    assert promise.everything(("plain", "ngram")) == ("plain", "ngram", "auto")


def test_the_table_has_a_line_a_method() -> None:
    text = promise.table("float32", [tally("draft"), tally("ngram", 7)]).markdown()
    assert "| draft | 2 | 2 | 40 | 0 | 0 | 2.00 |" in text
    assert "| ngram | 2 | 2 | 40 | 7 | 1 | 2.00 |" in text


def test_the_conclusion_says_where_it_began() -> None:
    assert promise.conclusion([tally("draft"), tally("ngram", 7)]) == [
        "8 generations, 80 tokens, 7 of them differ",
        "float32, ngram: first at prompt 3 (the first 18 tokens of it), seed 17, drawn, position 5",
    ]


@pytest.mark.parametrize(("differing", "code"), [(0, 0), (7, 1)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_difference_is_a_failure(
    differing: int, code: int, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sweep: promise.Sweep, dtype: str, progress: Progress) -> list[Tally]:
        progress(f"{dtype}: starting", 0, 1)
        return [tally("draft"), tally("ngram", differing)]

    monkeypatch.setattr(promise.Sweep, "run", run)
    ran = CliRunner().invoke(promise.app, ["--dtype", "float32", *flags])
    assert ran.exit_code == code
    if flags:
        found = json.loads(ran.output)
        assert [one["differing_tokens"] for one in found] == [0, differing]
    else:
        assert f"{differing} of them differ" in ran.output


@pytest.mark.parametrize(
    ("flags", "tried"),
    [([], ["bfloat16", "float32"]), (["--dtype", "bfloat16"], ["bfloat16"])],
)
def test_both_number_formats_are_tried(
    flags: list[str], tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(sweep: promise.Sweep, dtype: str, progress: Progress) -> list[Tally]:
        ran.append(dtype)
        return [tally("draft")]

    monkeypatch.setattr(promise.Sweep, "run", run)
    assert CliRunner().invoke(promise.app, flags).exit_code == 0
    assert ran == tried


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_sweep_whose_drafter_is_not_there_is_none(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waited(*_: object) -> None:
        if when == "before":
            raise StartupError("the drafter is gone")
        services[0].ended = True

    services = [SimpleNamespace(name="drafter", ended=False)]
    made = MagicMock(address="127.0.0.1:1", services=services)
    monkeypatch.setattr(promise, "Cluster", lambda **_: made)
    monkeypatch.setattr(promise, "await_draft", waited)
    monkeypatch.setattr(promise, "offered", lambda client: OFFERED)
    monkeypatch.setattr("bench.prompts.encode", lambda *_: [])
    monkeypatch.setattr("bench.cases.make", lambda *_: [])
    sweep = promise.Sweep(
        models=Models(target=Path("target"), draft=Path("draft")),
        threads=1,
        methods=("draft",),
        generations=2,
        max_tokens=4,
        concurrency=1,
        share_ngrams=False,
    )
    with pytest.raises(StartupError, match="the drafter is gone"):
        sweep.run("float32", lambda *_: None)
