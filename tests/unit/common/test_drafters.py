"""Which drafter fits a target."""

from typing import NamedTuple

from common.drafters import misfit


class Named(NamedTuple):
    tokenizer_fingerprint: str = "f" * 64
    vocab_size: int = 100


def test_the_same_ids_must_stand_for_the_same_text() -> None:
    assert misfit(Named(), Named()) is None
    other = Named(tokenizer_fingerprint="")
    assert misfit(Named(), other) == "its tokenizer (none) differs from the target's (ffffffffffff)"
    assert misfit(other, Named()) == "its tokenizer (ffffffffffff) differs from the target's (none)"


def test_behind_one_tokenizer_vocabularies_may_be_padded_otherwise() -> None:
    assert misfit(Named(), Named(vocab_size=50)) is None


def test_without_tokenizers_vocabularies_must_be_as_large() -> None:
    nameless, smaller = Named(""), Named("", 50)
    assert misfit(nameless, nameless) is None
    assert misfit(nameless, smaller) == "its vocabulary has 50 ids, the target's 100"
