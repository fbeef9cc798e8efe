"""What followed what in one sequence: counts of the token after each short context.

The suffixes of a text, up to a few tokens long, in one hash table: a token costs one update for
each length, a look-up nothing that grows with the text. Memory is bounded by two generations of
contexts: when the younger is full the older goes, and what is asked for again survives.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ids

from common.followers import MOST_FOLLOWERS, commonest

Context = tuple[int, ...]
"""The last tokens before the one in question, oldest first."""


class Contexts:
    """Counts of the tokens that followed each context of 1 to `order` tokens.

    Args:
        order: Longest context, in tokens.
        most: Contexts kept in one of the two generations.
    """

    def __init__(self, order: int, most: int = 1 << 16) -> None:
        self.order = order
        self._most = most
        # One follower seen once, the usual case, is the id itself: a fifth of a dict's memory.
        self._young: dict[Context, int | dict[int, float]] = {}
        self._old: dict[Context, int | dict[int, float]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, context: Ids[int], token: int) -> None:
        """Counts `token` after each suffix of `context`."""
        known = tuple(context[-self.order :])
        for start in range(len(known)):
            self._count(known[start:], token)

    def extend(self, ids: Ids[int], start: int) -> None:
        """Counts every token of a text from index `start` on, after the tokens before it."""
        order, count = self.order, self._count
        for index in range(max(start, 1), len(ids)):
            known = tuple(ids[max(index - order, 0) : index])
            for first in range(len(known)):
                count(known[first:], ids[index])

    def followers(self, context: Context) -> Mapping[int, float] | None:
        """Counts by token after exactly this context; None where it was never seen."""
        found = self._young.get(context)
        if found is None:
            found = self._old.pop(context, None)
            if found is None:
                return None
            self._keep(context, found)
        return {found: 1.0} if isinstance(found, int) else found

    def _count(self, context: Context, token: int) -> None:
        found = self._young.get(context)
        if found is None:
            found = self._old.pop(context, None)
            self._keep(context, token if found is None else found)
            if found is None:
                return
        if isinstance(found, int):
            self._young[context] = {found: 2.0} if found == token else {found: 1.0, token: 1.0}
            return
        found[token] = found.get(token, 0.0) + 1.0
        if len(found) > MOST_FOLLOWERS:
            self._young[context] = commonest(found)

    def _keep(self, context: Context, found: int | dict[int, float]) -> None:
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[context] = found
