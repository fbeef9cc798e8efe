"""Files of training data: what is read from them, and what bad ones are told."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import normalizers
from transformers import LlamaConfig

from common.errors import ModelError
from common.tokenizer import Tokenizer
from tests.tiny_tokenizers import byte_fallback
from training import blocks
from training.corpus import Document, Turn, read
from training.encode import Encoder, Ids
from training.errors import DataError


def _file(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_json_lines_hold_texts_problems_and_conversations(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        "mixed.jsonl",
        '{"text": " One. "}\n\n{"question": "1+1?", "answer": "2"}\n'
        '{"messages": [{"role": "system", "content": "Hm."}, {"role": "user", "content": "Hi"}]}\n',
    )
    assert read([file]) == [
        Document(text="One."),
        Document(turns=(Turn("user", "1+1?"), Turn("assistant", "2"))),
        Document(turns=(Turn("system", "Hm."), Turn("user", "Hi"))),
    ]


def test_a_line_of_json_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    text = "One.\u2028Two.\u2029Three.\u0085Four."
    file = _file(tmp_path, "lines.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\r\n")
    assert read([file]) == [Document(text=text)]
    talk = _file(tmp_path, "talk.txt", f"User: {text}\nAssistant: Ho")
    assert read([talk]) == [Document(turns=(Turn("user", text), Turn("assistant", "Ho")))]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    talk = _file(tmp_path, "talk.txt", "\ufeffUser: Hi\nAssistant: Ho")
    line = _file(tmp_path, "line.jsonl", "\ufeff" + json.dumps({"text": "One."}))
    turns = (Turn("user", "Hi"), Turn("assistant", "Ho"))
    assert read([talk, line]) == [Document(turns=turns), Document(text="One.")]


def test_plain_text_is_cut_at_separators_or_blank_lines(tmp_path: Path) -> None:
    separated = _file(tmp_path, "a.txt", "One.\n\nStill one.\n<|endoftext|>\nTwo.\n<|endoftext|>\n")
    spaced = _file(tmp_path, "b.txt", "User: Hi\nAssistant: Ho\n\n\nUser: spoke\nand left.\n")
    assert read([separated, spaced]) == [
        Document(text="One.\n\nStill one."),
        Document(text="Two."),
        Document(turns=(Turn("user", "Hi"), Turn("assistant", "Ho"))),
        Document(text="User: spoke\nand left."),
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.txt", "", "empty"),
        ("blank.jsonl", "\n \n", "empty"),
        ("latin.txt", b"caf\xe9 au lait", "not UTF-8: byte 3"),
        ("broken.jsonl", '{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("deep.jsonl", "[" * 200_000, "line 1: not JSON"),
        ("half.jsonl", '{"text": "a \\ud83d b"}\n', "line 1: holds half a character"),
        ("blank.jsonl", '{"text": "a"}\n{"text": " "}\n', 'line 2: "text" is empty'),
        ("odd.jsonl", '{"body": "a"}\n', 'line 1: needs "text"'),
        ("roles.jsonl", '{"messages": [{"role": "user"}]}\n', 'each of "messages" needs'),
    ],
)
def test_bad_data_is_refused_with_the_files_name(
    name: str, content: str | bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        read([_file(tmp_path, name, content)])
    assert name in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt: cannot be read"):
        read([tmp_path / "nowhere.txt"])


def test_a_file_shorter_than_a_block_is_named(encoder: Encoder, tmp_path: Path) -> None:
    file = _file(tmp_path, "short.txt", "The cat.")
    with pytest.raises(DataError, match=r"short\.txt: \d+ tokens, shorter than a block of 64"):
        blocks.of_corpora([file], encoder, block_tokens=64, seed=0)


def test_conversations_use_the_chat_template_and_end(encoder: Encoder) -> None:
    talk = Document(turns=(Turn("user", "The cat"), Turn("assistant", "is in.")))
    whole, text = encoder.documents([talk, Document(text="The cat")])
    assert encoder.tokenizer.decode(whole) == "<|begin|><|user|>The cat<|assistant|>is in.<|end|>"
    assert encoder.tokenizer.decode(text) == "The cat<|end|>"
    prompt = encoder.prompt(talk, random.Random(0))
    assert encoder.tokenizer.decode(prompt) == "<|begin|><|user|>The cat<|assistant|>"
    assert whole[: len(prompt)] == prompt


def test_prompts_are_drawn_until_there_are_enough(encoder: Encoder) -> None:
    documents = [Document(text=text) for text in ("", *(f"Story {n} of a cat." for n in range(40)))]

    def drawn(count: int, most_tokens: int = 20, seed: int = 0) -> list[Ids]:
        chooser = random.Random(seed)
        return encoder.prompts(documents, chooser, count=count, most_tokens=most_tokens)

    everything = drawn(99)
    assert len(everything) == 40, "nothing begins an empty text"
    assert drawn(5) == everything[:5]
    short = drawn(99, most_tokens=8)
    assert short == [ids for ids in everything if len(ids) <= 8]
    assert 0 < len(short) < 40
    assert drawn(99, seed=1) != everything


def test_a_chat_template_that_conversations_lack_is_named(target: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(target, tmp_path / "target")
    template = directory / "chat_template.jinja"
    talk = Document(turns=(Turn("user", "The cat"),))
    template.write_text("{{ raise_exception('no cats') }}")
    with pytest.raises(ModelError, match=r"target: its chat template refuses .*: no cats"):
        Encoder(directory).documents([talk])
    template.unlink()
    encoder = Encoder(directory)
    with pytest.raises(ModelError, match="target: no chat template, which conversations need"):
        encoder.prompt(talk, random.Random(0))
    assert encoder.documents([Document(text="The cat")])


def test_ids_are_those_that_the_model_is_served_with(tmp_path: Path) -> None:
    backend = byte_fallback()._backend
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(marks)  # type: ignore[assignment]
    backend.save(str(tmp_path / "tokenizer.json"))
    template = "{% for turn in messages %}<s>{{ turn.content }}{% endfor %}"
    # With these settings transformers marks the beginning of a text only.
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "chat_template": template}
    names = {"eos_token": "<s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | names))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    encoder, served = Encoder(tmp_path), Tokenizer.load(tmp_path)
    assert served is not None
    ids = encoder.chat((Turn("user", "the cat"), Turn("user", "s")))
    messages = [{"role": "user", "content": text} for text in ("the cat", "s")]
    assert ids == served.apply_chat_template(messages)
    assert encoder.text("the cat") == served.encode("the cat")
    (plain,) = encoder.documents([Document(text="the cat")])
    assert plain == [*served.encode("the cat"), encoder.end]


def test_ids_that_the_model_has_not_are_refused(target: Path) -> None:
    documents = [Document(turns=(Turn("user", "The cat is in the house."),))]
    (whole,) = Encoder(target).documents(documents)
    most = max(whole)
    enough, few = (
        Encoder(target, SimpleNamespace(config=LlamaConfig(vocab_size=size)))
        for size in (most + 1, most)
    )
    assert enough.documents(documents) == [whole]
    with pytest.raises(ModelError, match=f"its tokenizer makes id {most}, but the model's are 0"):
        few.documents(documents)
    with pytest.raises(ModelError, match=f"its tokenizer makes id {most}, but the model's are 0"):
        few.prompts(documents, random.Random(0), count=1, most_tokens=99)


def test_rows_are_filled_up_with_an_id_that_the_model_has(target: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(target, tmp_path / "target"))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings["pad_token"] = "<|added|>"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    added = Encoder(directory).pad
    model = SimpleNamespace(config=LlamaConfig(vocab_size=added))
    encoder = Encoder(directory, model)
    assert encoder.pad == encoder.end < added


def test_a_tokenizer_in_an_older_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "<|endoftext|>": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match=r"`vocab.json` is not read: .* writes tokenizer\.json"):
        Encoder(tmp_path)


def test_a_damaged_tokenizer_is_named(target: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(target, tmp_path / "target")
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="target: no tokenizer to be had there"):
        Encoder(directory)


def test_a_corpus_is_encoded_in_parts_to_the_same_blocks(
    stories: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = blocks.of_corpora([stories], encoder, block_tokens=16, seed=3)
    monkeypatch.setattr(blocks, "_AT_ONCE", 7)
    parts = blocks.of_corpora([stories], encoder, block_tokens=16, seed=3)
    assert torch.equal(whole.ids, parts.ids)


def test_the_batch_of_a_step_depends_on_seed_and_step_alone(
    stories: Path, talks: Path, encoder: Encoder
) -> None:
    one, again, other = (
        blocks.of_corpora([stories, talks], encoder, block_tokens=16, seed=seed)
        for seed in (0, 0, 1)
    )
    for step in range(3):
        one.batch(step, 4)
    assert one.batch(7, 4).tolist() == again.batch(7, 4).tolist() != other.batch(7, 4).tolist()
    size = len(one)
    epoch = [tuple(row) for row in one.batch(1, size).tolist()]
    assert sorted(epoch) == sorted(map(tuple, one.ids.tolist()))


def test_a_mixture_keeps_its_proportion(stories: Path, talks: Path, encoder: Encoder) -> None:
    first, second = (
        blocks.of_corpora([file], encoder, block_tokens=16, seed=0) for file in (stories, talks)
    )
    batch = blocks.Mixture(first, second, share=0.75).batch(2, 8)
    assert batch[:2].tolist() == first.batch(2, 2).tolist()
    assert batch[2:].tolist() == second.batch(2, 6).tolist()


@pytest.mark.parametrize(("share", "size"), [(0.75, 2), (0.6, 4), (0.1, 1), (0.0, 2), (1.0, 2)])
def test_a_mixture_keeps_its_proportion_in_the_long_run(share: float, size: int) -> None:
    first, second = (
        blocks.Blocks(torch.arange(start, start + 500)[:, None], seed=0) for start in (0, 1000)
    )
    mixture = blocks.Mixture(first, second, share=share)
    batches = [mixture.batch(step, size)[:, 0].tolist() for step in range(100)]
    assert all(len(batch) == size for batch in batches)
    every = [number for batch in batches for number in batch]
    assert len(set(every)) == 100 * size, "no block is passed over, and none comes again"
    assert sum(number >= 1000 for number in every) == round(100 * size * share)
    assert mixture.batch(57, size)[:, 0].tolist() == batches[57]
