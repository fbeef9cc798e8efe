"""Tokenizers of model directories: fingerprints, chat templates, corrupt files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.chat_template import ChatTemplate
from common.errors import InvalidArgument, ModelError
from common.tokenizer import Tokenizer, fingerprint
from tests.tiny_tokenizers import byte_fallback, byte_level, metaspace


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    byte_level()._backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def change(directory: Path, **values: object) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=3))


def test_the_fingerprint_is_of_the_tokenizer_not_of_the_file(directory: Path) -> None:
    before = fingerprint(directory)
    truncation = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    change(directory, truncation=truncation)
    assert fingerprint(directory) == before
    loaded = Tokenizer.load(directory)
    assert loaded is not None
    assert loaded.fingerprint == before
    assert len(loaded.encode("longer than eight bytes")) > 8
    change(directory, normalizer={"type": "Lowercase"})
    assert fingerprint(directory) != before


def test_same_size_other_merges_is_another_fingerprint(directory: Path) -> None:
    before, path = fingerprint(directory), directory / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["model"]["merges"].reverse()
    path.write_text(json.dumps(definition))
    assert fingerprint(directory) != before


def test_no_tokenizer_is_none_and_no_fingerprint(tmp_path: Path) -> None:
    assert Tokenizer.load(tmp_path) is None
    assert fingerprint(tmp_path) == ""


def test_broken_directories_are_named(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such model directory"):
        Tokenizer.load(tmp_path / "nowhere")
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')
    with pytest.raises(ModelError, match="the chat template is broken"):
        Tokenizer.load(directory)
    for text in ('{"model": 1}', "not json"):
        (directory / "tokenizer.json").write_text(text)
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            Tokenizer.load(directory)


def test_the_longest_token_bounds_what_a_text_needs() -> None:
    assert byte_level().longest_token_chars == len("<s>")
    assert metaspace().longest_token_chars == len("<unk>")


def test_only_bytes_of_each_token_are_pieces_for_themselves() -> None:
    tokenizer = byte_level()
    assert tokenizer.joins_bytes
    ids = tokenizer.encode("words and words")
    assert "".join(map(tokenizer.piece, ids)) == "words and words"
    assert not byte_fallback().joins_bytes
    assert not metaspace().joins_bytes


def test_a_named_default_template_is_used(directory: Path) -> None:
    templates = [
        {"name": "tool", "template": "x"},
        {"name": "default", "template": "{{ bos_token }}a"},
    ]
    config = {"chat_template": templates, "bos_token": "<s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = Tokenizer.load(directory)
    assert loaded is not None
    assert loaded.has_chat_template
    ids = loaded.apply_chat_template([{"role": "user", "content": "hi"}])
    assert ids[0] == 0
    assert loaded.decode(ids) == "a"


def test_the_demo_template_equals_transformers(demo_target: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(demo_target)
    ours = Tokenizer.load(demo_target)
    assert ours is not None
    messages = [
        {"role": "user", "content": "A table for two, <b>please</b> 😀"},
        {"role": "assistant", "content": "When?"},
        {"role": "user", "content": "At seven."},
    ]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    expected = expected if isinstance(expected, list) else expected["input_ids"]
    assert ours.apply_chat_template(messages) == expected
    assert ours.encode("Grüße 😀") == theirs("Grüße 😀")["input_ids"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].missing.attribute }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
    ],
)
def test_templates_fail_naming_the_messages(source: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^chat\.messages: refused by the model's chat"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_templates_see_what_transformers_gives_them() -> None:
    source = (
        "{% for m in messages %}\n    {% if m.role == 'x' %}{% continue %}{% endif %}\n"
        "{{ m.content | tojson }}\n{% endfor %}{{ add_generation_prompt }}{{ strftime_now('%%') }}"
    )
    messages = [{"role": "x", "content": "no"}, {"role": "user", "content": "<é>"}]
    assert ChatTemplate(source, {}).render(messages) == '"<é>"\nTrue%'


def test_a_fingerprint_needs_only_the_standard_library() -> None:
    code = (
        "import sys, pathlib; from common.tokenizer import fingerprint; "
        "fingerprint(pathlib.Path('.')); "
        "print(sorted({'tokenizers', 'jinja2', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_older_form_is_told_apart_from_none_and_from_another(tmp_path: Path) -> None:
    assert fingerprint(tmp_path) == ""
    (tmp_path / "tokenizer.model").write_bytes(b"one")
    first = fingerprint(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"two")
    assert first
    assert fingerprint(tmp_path) not in ("", first)
