"""Prompts that nobody has asked yet, made of those that were: so that no cache has their beginning.

Which one is next is counted where they are asked: each contender's process begins with the first,
and the methods of one deployment go on where the others stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


class Unseen:
    """Writes two ids behind a prompt's first one, another pair each time.

    Args:
        marks: Ordinary ids to take them from; none leaves prompts as they are. The pairs begin
            anew after the square of their number.
    """

    def __init__(self, marks: Sequence[int]) -> None:
        self._marks = marks
        self.changes = bool(marks)
        """Whether prompts become others."""
        self._turns = itertools.count()

    def __call__(self, prompt: Sequence[int]) -> list[int]:
        """Return the prompt to ask in its place; may be called by several threads."""
        if not self.changes:
            return list(prompt)
        many, last = divmod(next(self._turns), len(self._marks))
        first = many % len(self._marks)
        return [*prompt[:1], self._marks[first], self._marks[last], *prompt[1:]]
