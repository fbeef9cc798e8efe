"""Tokens that tokenizer_config.json knows more of than tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from common.errors import ModelError
from common.tokenizer import Tokenizer, fingerprint
from tests.tiny_tokenizers import byte_level

END, CALL = "<|end|>", "<call>"
PIECES = byte_level()._backend.get_vocab_size()


def loaded(
    directory: Path, *added: AddedToken, of_transformers: bool = True, **settings: Any
) -> Tokenizer:
    """A byte-level tokenizer with tokens more in tokenizer.json, and what the other file says.

    It does as that of transformers does.
    """
    backend = byte_level()._backend
    backend.add_tokens([*added])
    backend.save(str(directory / "tokenizer.json"))
    before = fingerprint(directory)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer is not None
    assert tokenizer.fingerprint == before
    if of_transformers:
        transformers = pytest.importorskip("transformers")
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        text = f"a {END}{CALL} <s>b"
        ids = tokenizer.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    return tokenizer


def said(content: str, *, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, "special": special, **flags}


def test_a_token_that_only_the_other_file_has_is_one_id(tmp_path: Path) -> None:
    claims = {str(PIECES + 1): said(CALL, special=False), str(PIECES): said(END)}
    tokenizer = loaded(tmp_path, added_tokens_decoder=claims)
    assert tokenizer.encode(f"{CALL}{END}") == [PIECES + 1, PIECES]
    assert tokenizer.decode([PIECES, PIECES + 1]) == CALL
    assert PIECES in tokenizer.silent_ids


def test_an_end_is_no_text_whatever_it_is_called(tmp_path: Path) -> None:
    end = AddedToken(END, special=False, normalized=False, lstrip=True)
    tokenizer = loaded(tmp_path, end, eos_token=END)
    assert tokenizer.encode(f"a {END}")[1:] == [PIECES], "it takes the space as before"
    assert tokenizer.decode(tokenizer.encode(f"a {END}")) == "a"


def test_a_piece_that_begins_a_text_is_special(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, bos_token="Ġa")
    assert tokenizer.decode(tokenizer.encode("b ab")) == "bb"


def test_a_token_that_the_vocabulary_lacks_is_not_made_up(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, of_transformers=False, eos_token=END)
    assert tokenizer.decode(tokenizer.encode(END)) == END
    assert max(tokenizer.encode(END)) < PIECES


def test_ids_that_tokens_do_not_have_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claims = {str(PIECES): said("<s>"), str(PIECES + 5): said(END)}
    tokenizer = loaded(tmp_path, of_transformers=False, added_tokens_decoder=claims)
    assert tokenizer.encode("<s>") == [0]
    assert max(tokenizer.encode(END)) < PIECES
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.__dict__["tokens"] == {"<s>": PIECES, END: PIECES + 5}


@pytest.mark.parametrize(
    "claims",
    [5, {"x": said(END)}, {"1": END}, {"1": {"special": True}}, {"1": {"content": None}}],
)
def test_claims_of_another_form_are_refused(claims: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: added_tokens_decoder: must"):
        loaded(tmp_path, added_tokens_decoder=claims)
