"""What followed what: counts of the token after each short context.

The suffixes of a text, up to a few tokens long, in one hash table: a token costs one update for
each length, a look-up nothing that grows with the text. Memory is bounded by two generations of
contexts: when the younger is full the older goes, and what is asked for again survives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq

Context = tuple[int, ...]
"""The last tokens before the one in question, oldest first."""

_MOST_FOLLOWERS = 16
"""Kept for one context; the rare half goes when there are more."""


class Contexts:
    """Counts of the tokens that followed each context.

    Args:
        order: Longest context of a text, in tokens.
        most: Contexts kept in one of the two generations.
    """

    def __init__(self, order: int, most: int = 1 << 16) -> None:
        self.order = order
        self._most = most
        # One follower, the usual case, is a pair: a quarter of a dict's memory.
        self._young: dict[Context, tuple[int, float] | dict[int, float]] = {}
        self._old: dict[Context, tuple[int, float] | dict[int, float]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, context: Seq[int], token: int) -> None:
        """Counts `token` after each suffix of `context`."""
        known = tuple(context[-self.order :])
        for start in range(len(known)):
            self._count(known[start:], token, 1.0)

    def extend(self, ids: Seq[int], start: int) -> None:
        """Counts every token of a text from index `start` on, after the tokens before it."""
        for index in range(max(start, 1), len(ids)):
            self.add(ids[max(index - self.order, 0) : index], ids[index])

    def add_ngram(self, ngram: Seq[int], weight: float) -> None:
        """Counts each token of an n-gram after all those before it.

        Args:
            ngram: At most 33 tokens.
            weight: What each counts; nothing is counted where that is no positive number.
        """
        for end in range(1, len(ngram)):
            self._count(tuple(ngram[:end]), ngram[end], weight)

    def followers(self, context: Seq[int]) -> Mapping[int, float] | None:
        """Counts by token after exactly this context; None where it was never seen."""
        found = self._find(tuple(context))
        return dict([found]) if isinstance(found, tuple) else found

    def _count(self, context: Context, token: int, weight: float) -> None:
        if not 0.0 < weight < math.inf:
            return
        found = self._find(context)
        if found is None:
            self._keep(context, (token, weight))
            return
        if isinstance(found, tuple):
            if found[0] == token:
                self._young[context] = token, found[1] + weight
                return
            found = self._young[context] = dict([found])
        found[token] = found.get(token, 0.0) + weight
        if len(found) > _MOST_FOLLOWERS:
            self._young[context] = _commonest(found)

    def _find(self, context: Context) -> tuple[int, float] | dict[int, float] | None:
        """What is known of a context, which is of the younger generation from now on."""
        found = self._young.get(context)
        if found is None:
            found = self._old.pop(context, None)
            if found is not None:
                self._keep(context, found)
        return found

    def _keep(self, context: Context, found: tuple[int, float] | dict[int, float]) -> None:
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[context] = found


def _commonest(followers: dict[int, float]) -> dict[int, float]:
    """The commoner half, at half its counts, so that newcomers get a chance."""
    ranked = sorted(followers.items(), key=lambda item: item[1], reverse=True)
    return {token: count / 2 for token, count in ranked[: _MOST_FOLLOWERS // 2]}
