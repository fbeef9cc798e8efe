"""Corpora and a model small enough to be trained in a test."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from training import runs
from training.corpus import read
from training.encode import Encoder
from training.loop import make_accelerator
from training.models import save_model
from training.pretrain import ModelShape, make_model, train_tokenizer
from training.written import WriteConfig

SHAPE = ModelShape(vocab=320, layers=2, hidden=32, heads=2, kv_heads=1, mlp=48, context=128)

WRITING = WriteConfig(texts=24, max_new_tokens=12, batch=8)

_ANIMALS, _PLACES = ("cat", "dog", "duck", "frog"), ("house", "garden", "pond", "wood")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads only wait for each other over tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _sentence(chooser: random.Random) -> str:
    return f"The {chooser.choice(_ANIMALS)} is in the {chooser.choice(_PLACES)}."


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chooser = random.Random(0)
    file = tmp_path_factory.mktemp("corpora") / "stories.jsonl"
    texts = [" ".join(_sentence(chooser) for _ in range(4)) for _ in range(60)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


@pytest.fixture(scope="session")
def talks(stories: Path) -> Path:
    chooser = random.Random(1)
    file = stories.with_name("talks.txt")
    talks = [
        f"User: Where is the {animal}?\nAssistant: {_sentence(chooser)}\nUser: Thanks."
        for animal in _ANIMALS * 8
    ]
    file.write_text("\n\n".join(talks))
    return file


def unseen(file: Path) -> Path:
    """A corpus' documents in another file of that name, as if they were held out."""
    folder = file.parent / "unseen"
    folder.mkdir(exist_ok=True)
    copy = folder / file.name
    copy.write_text(f"\n{file.read_text()}")  # other bytes: the same would be known
    return copy


@pytest.fixture(scope="session")
def target(stories: Path, talks: Path) -> Path:
    """A random model with a tokenizer trained on the corpora."""
    directory = stories.with_name("target")
    tokenizer = train_tokenizer(read([stories, talks]), SHAPE)
    save_model(make_model(SHAPE, tokenizer, seed=0), tokenizer, directory)
    return directory


@pytest.fixture(scope="session")
def encoder(target: Path) -> Encoder:
    return Encoder(target)


@pytest.fixture(scope="session")
def texts(target: Path, stories: Path, talks: Path) -> Path:
    """What the target wrote."""
    out = stories.with_name("written.jsonl")
    runs.write(
        target=target,
        corpora=[stories, talks],
        out=out,
        config=WRITING,
        device="cpu",
        progress=lambda done, total: None,
    )
    return out


@pytest.fixture
def accelerator() -> Accelerator:
    return make_accelerator("cpu", half=False)
