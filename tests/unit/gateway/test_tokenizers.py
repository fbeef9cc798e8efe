"""Tokenizers of the gateway's model directories, and whose each is."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from common.tokenizer import fingerprint
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


def only(directories: list[Path]) -> Named:
    """What is loaded of directories with one fingerprint."""
    loaded = tokenizers.load(directories)
    return loaded[fingerprint(directories[0])]


def loaded(folder: Path, **templates: str | None) -> Named:
    return only([saved(folder / n, t) for n, t in templates.items()])


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


def test_models_of_one_tokenizer_keep_the_tokens_that_are_added(tmp_path: Path) -> None:
    directories = [saved(tmp_path / name, None) for name in ("coder", "thinker")]
    added = str(byte_level()._backend.get_vocab_size())
    for directory, content in zip(directories, ("<tool>", "<think>"), strict=True):
        claims = {"added_tokens_decoder": {added: {"content": content}}}
        (directory / "tokenizer_config.json").write_text(json.dumps(claims))
    named = only(directories)
    assert named["coder"].decode([int(added)]) == "<tool>"
    assert named["thinker"].decode([int(added)]) == "<think>"
    assert undecided(named, "m")


def test_an_older_worker_is_known_by_the_hash_of_what_its_file_says(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", "answer"), saved(tmp_path / "other", "think")
    definition = json.loads((one / "tokenizer.json").read_text())
    definition |= {"post_processor": definition["decoder"]}
    (other / "tokenizer.json").write_text(json.dumps(definition))
    del definition["truncation"], definition["padding"]
    written = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    former = hashlib.sha256(written.encode()).hexdigest()
    assert former != fingerprint(other)
    loaded = tokenizers.load([one, other])
    assert [*loaded[former]] == ["one", "other"], "the same tokenizer, whoever wrote its file"
    assert loaded[former] is loaded[fingerprint(other)]


def test_of_one_name_the_last_counts_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = saved(tmp_path / "a/m", "answer"), saved(tmp_path / "b/m", "think")
    only([first, first])
    assert not caplog.records
    named = only([first, second])
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
