"""What a model's tokenizer_config.json says of tokens beyond its tokenizer.json.

`transformers` goes by both. A token that only the former has would be cut into pieces that the
model has not seen in its place, and an end that only it calls special would be written as text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

_log = logging.getLogger(__name__)

_FLAGS = ("single_word", "lstrip", "rstrip", "special")


def complete(backend: Backend, file: Path, claims: Any, ends: Iterable[str]) -> None:
    """Adds tokens to those of tokenizer.json, and calls those special that are.

    Args:
        backend: What was read from tokenizer.json; is changed.
        file: The tokenizer_config.json.
        claims: What it has as `added_tokens_decoder`.
        ends: Tokens that begin or end a text, special whatever else is said of them.

    Raises:
        ModelError: `claims` are of another form.
    """
    try:
        claimed = {int(id_): _token(said) for id_, said in sorted(claims.items(), key=_id)}
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = "added_tokens_decoder: must hold tokens by id"
        raise ModelError(f"{file}: {problem}") from None
    _add(backend, claimed)
    wrong = {
        token.content: id_
        for id_, token in claimed.items()
        if backend.token_to_id(token.content) != id_
    }
    if wrong:
        said = {"file": str(file), "tokens": wrong}
        _log.warning("tokenizer_config.json gives tokens other ids than they have", extra=said)
    special = {token.content for token in claimed.values() if token.special}
    _call_special(backend, special.union(ends))


def _add(backend: Backend, claimed: Mapping[int, AddedToken]) -> None:
    """Adds those that get the id they are said to have: their piece's, or the next one."""
    added = backend.get_added_tokens_decoder()
    ids = backend.get_vocab(with_added_tokens=True)
    following = max(backend.get_vocab_size(with_added_tokens=False), 1 + max(added, default=-1))
    fresh = []
    for id_, token in claimed.items():
        if id_ not in added and ids.setdefault(token.content, following) == id_:
            fresh.append(token)
            following += id_ == following
    backend.add_tokens(fresh)


def _call_special(backend: Backend, contents: Iterable[str]) -> None:
    """Makes tokens special that the vocabulary has, and leaves them otherwise as they are."""
    from tokenizers import AddedToken  # lazily: see `common.tokenizer`

    added = backend.get_added_tokens_decoder()
    for content in sorted(contents):
        id_ = backend.token_to_id(content)
        if id_ is None or (id_ in added and added[id_].special):
            continue
        token = added.get(id_, AddedToken(content, normalized=False))
        token.special = True
        backend.add_special_tokens([token])


def _id(entry: tuple[Any, Any]) -> int:
    return int(entry[0])


def _token(said: Any) -> AddedToken:
    from tokenizers import AddedToken  # lazily: see `common.tokenizer`

    content = said["content"]
    if not isinstance(content, str):
        raise TypeError
    flags = {flag: bool(said.get(flag)) for flag in _FLAGS}
    normalized = bool(said.get("normalized", not flags["special"]))
    return AddedToken(content, normalized=normalized, **flags)
