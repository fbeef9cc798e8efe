"""Feeds a growing text to what indexes it, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

_MOST_TOKENS = 4096
"""In one go, two or three milliseconds: a long prompt must not hold up the other sequences."""


class Index(Protocol):
    """Something that knows a text up to some place."""

    def extend(self, ids: Seq[int], start: int) -> None:
        """Takes the tokens of a text from index `start` on; those before it are known."""


class TextIndex:
    """Keeps indexes up to date with a text.

    Args:
        indexes: What to feed.
        start: Tokens at the beginning to leave out.
    """

    def __init__(self, *indexes: Index, start: int = 0) -> None:
        self._indexes = indexes
        self._known = start

    def catch_up(self, ids: Seq[int]) -> bool:
        """Takes further tokens into account; returns whether all of them are by now."""
        end = min(self._known + _MOST_TOKENS, len(ids))
        if end > self._known:
            piece = ids if end == len(ids) else ids[:end]
            for index in self._indexes:
                index.extend(piece, self._known)
            self._known = end
        return self._known == len(ids)
