"""Tokenizers of model directories: fingerprints, chat templates, corrupt files."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    "template",
    [5, ["text"], [{"nam": "default"}], [{"name": ["default"], "template": "x"}], {"default": 5}],
)
def test_a_chat_template_that_is_no_text_is_named(directory: Path, template: object) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template: must be text"):
        Tokenizer.load(directory)


def test_a_chat_template_may_be_that_of_pictures(directory: Path) -> None:
    file = directory / "chat_template.json"
    file.write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer is not None
    assert tokenizer.has_chat_template
    file.write_text("{}")
    tokenizer = Tokenizer.load(directory)
    assert tokenizer is not None
    assert not tokenizer.has_chat_template
    file.write_text('{"chat_template": 5}')
    with pytest.raises(ModelError, match=r"chat_template\.json: chat_template: must be text"):
        Tokenizer.load(directory)


def test_a_chat_template_in_another_encoding_is_named(directory: Path) -> None:
    (directory / "chat_template.jinja").write_bytes("é".encode("latin-1"))
    with pytest.raises(ModelError, match=r"chat_template\.jinja: cannot be read"):
        Tokenizer.load(directory)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_settings_without_end_are_named(name: str, directory: Path) -> None:
    (directory / name).write_text('{"a":' + "[" * 100_000)
    with pytest.raises(ModelError, match=rf"{name}: cannot be read: .*(recursion|flow)"):
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


@pytest.mark.parametrize("family", [byte_level, byte_fallback, metaspace])
def test_a_long_text_is_the_same_as_a_batch(family: Callable[[], Tokenizer]) -> None:
    tokenizer, text = family(), "the cat's é 日本 <s> \U0001f600\n\n a. " * 1000
    ids = tokenizer.encode(text)
    assert ids == tokenizer._backend.encode(text).ids
    assert tokenizer.decode(ids * 10) == tokenizer._backend.decode(ids * 10)


def test_so_is_a_long_conversation(demo_target: Path) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    assert tokenizer.template is not None
    messages = [{"role": "user", "content": "A table for two. "}] * 400
    text = tokenizer.template.render(messages)
    ids = tokenizer.apply_chat_template(messages)
    assert ids == tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@pytest.mark.parametrize("way", ["encode", "decode"])
def test_other_threads_run_beside_it(demo_target: Path, way: str) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    text = "words and other words " * 20_000
    given: Any = text if way == "encode" else tokenizer.encode(text) * 10
    began = threading.Event()

    def work() -> None:
        began.set()
        getattr(tokenizer, way)(given)

    thread, ticks = threading.Thread(target=work), 0
    thread.start()
    assert began.wait(30)
    while thread.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 3, "of a lock that is held all the while they would get one or two"


@pytest.mark.parametrize(
    "templates",
    [
        [
            {"name": "tool", "template": "x"},
            {"name": "default", "template": "{{ bos_token }}a"},
        ],
        {"tool": "x", "default": "{{ bos_token }}a"},
    ],
)
def test_a_named_default_template_is_used(directory: Path, templates: object) -> None:
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


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "    {{ m.content }}\n{% endfor %}{{ add_generation_prompt }}",
        "{% for m in messages %}\n  {% generation %}\n  {{ loop.index }}{{ m.content -}}\n"
        "  {% endgeneration %}\n{% endfor %}",
        "{% set n = 1 %}{% generation %}{% set n = 2 %}{{ n }}{% endgeneration %}{{ n }}",
        "{% if tools is not none %}tools{% endif %}{% if tools is defined %}given{% endif %}",
        "{% if documents is not none %}documents{% endif %}{{ documents }}",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{{ messages | tojson(ensure_ascii=true) }}{{ 'é' | tojson(false, none, (',', ':')) }}",
        "{{ messages[1] | tojson(sort_keys=true, separators=(',', ':')) }}",
        "{{ bos_token }}{{ unk_token }}{{ sep_token }}{{ strftime_now('%%') }}",
    ],
)
def test_templates_render_as_in_transformers(source: str) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": "<é>"}]
    tokens = {"bos_token": "<s>", "unk_token": "<unk>"}
    (expected,), _ = theirs.render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=True, **tokens
    )
    assert ChatTemplate(source, tokens).render(messages) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{{ m.content }}",
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
        "{% for p in m.content | selectattr('type', 'eq', 'text') %}{{ p['text'] }}{% endfor %}",
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}",
        "{{ m.content[0]['text'] }}",
    ],
)
def test_templates_of_models_that_see_pictures_show_texts(text: str) -> None:
    source = "{% for m in messages %}<{{ m.role }}>" + text + "{% endfor %}"
    messages = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}]
    assert ChatTemplate(source, {}).render(messages) == "<user>One?<assistant>Two."


@pytest.mark.parametrize(
    "source",
    [
        # Other roles have theirs whole, which are their text, too.
        "{% for m in messages %}{% if m.role == 'user' %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}|{% endfor %}",
        # A user's alone are refused.
        "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}",
    ],
)
def test_templates_that_take_parts_are_found_out(source: str) -> None:
    messages = [{"role": "system", "content": "Be."}, {"role": "user", "content": "One?"}]
    assert ChatTemplate(source, {}).render(messages) == "Be.|One?|"


def test_the_time_is_told_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a gateway is, it makes the same of the same messages."""
    source = (
        "{% macro now() %}{{ strftime_now('%d %b %Y, %H:%M %Z') }}{% endmacro %}"
        "{% if strftime_now is defined %}{{ now() }}{% endif %}"
    )
    monkeypatch.setenv("TZ", "ZZZ-9")
    time.tzset()
    try:
        template = ChatTemplate(source, {})
        assert template.render([], 86_399) == "01 Jan 1970, 23:59 UTC"
        before = datetime.now(UTC)
        assert before.strftime("%Y") <= template.render([])[7:11] <= f"{before.year + 1}"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("decoder", [{}, {"added_tokens_decoder": {}}])
def test_special_tokens_come_from_where_transformers_takes_them(
    directory: Path, decoder: dict[str, object]
) -> None:
    transformers = pytest.importorskip("transformers")
    names = ("bos", "eos", "unk", "pad", "cls", "image", "tool", "add_bos")
    template = "|".join(f"{{{{ {name}_token }}}}" for name in names)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
        "bos_token": "<b>",
        "eos_token": {"__type": "AddedToken", "content": "<e>"},
        "image_token": "<i>",
        "extra_special_tokens": {"tool_token": "<t>"},
        "add_bos_token": True,
        "pad_token": None,
    }
    kept = {"bos_token": "<m>", "unk_token": {"content": "<u>"}, "pad_token": "<p>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config | decoder))
    (directory / "special_tokens_map.json").write_text(json.dumps(kept))
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "hi"}]
    expected = theirs.apply_chat_template(messages, tokenize=False)
    ours = Tokenizer.load(directory)
    assert ours is not None
    assert ours.template is not None
    assert ours.template.render(messages) == expected


def test_a_fingerprint_needs_only_the_standard_library() -> None:
    code = (
        "import sys, pathlib; from common.tokenizer import fingerprint; "
        "fingerprint(pathlib.Path('.')); "
        "print(sorted({'tokenizers', 'jinja2', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "tiktoken.model"])
def test_an_older_form_is_told_apart_from_none_and_from_another(name: str, tmp_path: Path) -> None:
    assert fingerprint(tmp_path) == ""
    (tmp_path / name).write_bytes(b"one")
    first = fingerprint(tmp_path)
    (tmp_path / name).write_bytes(b"two")
    assert first
    assert fingerprint(tmp_path) not in ("", first)
