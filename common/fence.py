"""The rolling hash that ties a draft to the ids it continues.

Length alone does not tell two texts apart; length and this hash do. It is FNV-1a over 64 bits,
fed one token id at a time, so that both ends extend it with each round.
"""

from __future__ import annotations

from collections.abc import Iterable

EMPTY = 0xCBF29CE484222325
"""Hash of no ids."""

_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


def extend(path_hash: int, ids: Iterable[int]) -> int:
    """Hash of a text and the ids that follow it.

    Args:
        path_hash: Hash of the text; `EMPTY` for none.
        ids: Token ids.
    """
    for token in ids:
        path_hash = ((path_hash ^ (token + 1)) * _PRIME) & _MASK
    return path_hash
