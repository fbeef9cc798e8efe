"""Fingerprints of a tokenizer whose file was written by different hands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from common.tokenizer import fingerprint
from tests.tiny_tokenizers import byte_level

Definition = dict[str, Any]

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def written(directory: Path, definition: Definition) -> str:
    """The fingerprint of a definition."""
    (directory / "tokenizer.json").write_text(json.dumps(definition))
    return fingerprint(directory)


@pytest.fixture
def definition() -> Definition:
    found: Definition = json.loads(byte_level()._backend.to_str())
    return found


def spelt_as_before(definition: Definition) -> None:
    model = definition["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    for name in ("ignore_merges", "byte_fallback"):
        del model[name]
    for name in ("pre_tokenizer", "decoder"):
        del definition[name]["use_regex"]


def nothing_around_as_bytes(definition: Definition) -> None:
    definition["post_processor"] = BYTES


def offsets_untrimmed(definition: Definition) -> None:
    definition["pre_tokenizer"]["trim_offsets"] = False
    definition["decoder"] = BYTES


@pytest.mark.parametrize("change", [spelt_as_before, nothing_around_as_bytes, offsets_untrimmed])
def test_who_wrote_it_makes_no_other(
    change: Callable[[Definition], None], definition: Definition, tmp_path: Path
) -> None:
    text = "a \U0001f600 b  words\n"
    before, ids = written(tmp_path, definition), Backend.from_str(json.dumps(definition))
    change(definition)
    assert written(tmp_path, definition) == before
    again = Backend.from_str(json.dumps(definition))
    assert again.encode(text).ids == ids.encode(text).ids, "as it should be"
    assert written(tmp_path, json.loads(again.to_str())) == before


def all_pieces(definition: Definition) -> None:
    definition["model"]["ignore_merges"] = True


def split_otherwise(definition: Definition) -> None:
    definition["pre_tokenizer"]["use_regex"] = False


def a_token_before(definition: Definition) -> None:
    part = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [part], "pair": [part]}
    definition["post_processor"] = template | {"special_tokens": {}}


@pytest.mark.parametrize("change", [all_pieces, split_otherwise, a_token_before])
def test_other_ids_make_another(
    change: Callable[[Definition], None], definition: Definition, tmp_path: Path
) -> None:
    before = written(tmp_path, definition)
    change(definition)
    assert written(tmp_path, definition) != before


def test_the_bundled_models_keep_theirs(demo_target: Path) -> None:
    definition = json.loads((demo_target / "tokenizer.json").read_text())
    kept = {key: definition[key] for key in definition.keys() - {"truncation", "padding"}}
    plain = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert fingerprint(demo_target) == hashlib.sha256(plain.encode()).hexdigest()


@pytest.mark.parametrize("model", [1, None, {"merges": 5}, {"type": "BPE", "merges": [5, ["a"]]}])
def test_what_is_no_definition_has_one_too(model: object, tmp_path: Path) -> None:
    assert written(tmp_path, {"model": model, "decoder": [[{"type": []}]]})
