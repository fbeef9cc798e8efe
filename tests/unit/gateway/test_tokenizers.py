"""Tokenizers of the gateway's model directories, and whose each is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import tokenizers
from gateway.tokenizers import Named, chosen, undecided
from tests.tiny_tokenizers import byte_level

TALK = [{"role": "user", "content": "hi"}]


def saved(directory: Path, template: str | None) -> Path:
    """A model directory with the same tokenizer as every other."""
    directory.mkdir(parents=True)
    byte_level()._backend.save(str(directory / "tokenizer.json"))
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def loaded(folder: Path, **templates: str | None) -> Named:
    (named,) = tokenizers.load([saved(folder / n, t) for n, t in templates.items()]).values()
    return named


def rendered(named: Named, model: str) -> str:
    tokenizer = chosen(named, model)
    assert tokenizer is not None
    return tokenizer.decode(tokenizer.apply_chat_template(TALK))


def test_models_of_one_tokenizer_keep_their_chat_templates(tmp_path: Path) -> None:
    named = loaded(tmp_path, instruct="answer", thinking="think", base=None)
    assert [rendered(named, model) for model in ("instruct", "thinking")] == ["answer", "think"]
    assert [undecided(named, model) for model in ("instruct", "base", "m")] == [False, False, True]
    for model in ("base", "m"):
        tokenizer = chosen(named, model)
        assert tokenizer is not None
        assert not tokenizer.has_chat_template, "the last one's"


def test_what_does_the_same_is_kept_once(tmp_path: Path) -> None:
    named = loaded(tmp_path, one="answer", other="answer")
    assert named["one"] is named["other"]
    assert not undecided(named, "m")
    assert rendered(named, "m") == "answer"
    assert chosen({}, "m") is None


def test_of_one_name_the_last_counts_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = saved(tmp_path / "a/m", "answer"), saved(tmp_path / "b/m", "think")
    (named,) = tokenizers.load([first, first]).values()
    assert not caplog.records
    (named,) = tokenizers.load([first, second]).values()
    assert rendered(named, "m") == "think"
    (record,) = caplog.records
    assert record.__dict__["directory"] == str(second)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("tokenizer.model", r"`tokenizer.model` is not read: .*save_pretrained\(d\)` writes"),
        ("vocab.json", "`vocab.json` is not read"),
        ("config.json", "no tokenizer.json there"),
    ],
)
def test_it_is_told_why_a_directory_has_no_tokenizer(
    file: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / file).write_text("{}")
    assert not tokenizers.load([tmp_path])
    (record,) = caplog.records
    assert record.message == "model directory has no tokenizer"
    assert re.match(reason, record.__dict__["reason"])
