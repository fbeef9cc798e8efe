"""Prompt lookup: where the end of a text occurred before, and what stood after it there.

A pointer follows the earlier occurrence token by token; only where it breaks is the last few
tokens' latest occurrence looked up. Constant time a token, two words of memory. Of what comes in
one piece, as a prompt does, only the end is followed.
(Saxena's prompt lookup with the match model of PAQ in place of its search.)
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

LEAST = 4
"""Tokens that must agree before an occurrence is followed."""

_MOST_LENGTH = 64

_MOST_PLACES = 1 << 16
"""Places remembered, at least; older ones are forgotten."""


class Match:
    """The longest recent match of a growing text's end."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens before the pointer that agree with the end of the text, as far as is known; 0
        where one disagreed and the pointer went on over it."""
        self._places: dict[tuple[int, ...], int] = {}
        self._older: dict[tuple[int, ...], int] = {}
        self._pointer = 0  # 0 where nothing is followed: nothing stands before index 1

    def extend(self, ids: Seq[int], start: int) -> None:
        """Takes the tokens of a text from index `start` on; those before it are known."""
        recent = len(ids) - _MOST_LENGTH
        if start < recent:  # a pointer that far back is found again by what agrees since
            self._pointer = self.length = 0
            self._remember_all(ids, start, recent)
            start = recent
        for index in range(start, len(ids)):
            self._follow(ids, index)
            self._remember(ids, index + 1)

    def continuation(self, ids: Seq[int], most: int) -> Seq[int]:
        """What stood after the earlier occurrence; empty where there is none.

        Where that runs into the end of the text, the text repeats itself and is expected to go on.

        Args:
            ids: The whole text.
            most: Longest wanted, in tokens.
        """
        if not self._pointer:
            return ()
        period = len(ids) - self._pointer
        return [ids[self._pointer + step % period] for step in range(most)]

    def _follow(self, ids: Seq[int], index: int) -> None:
        """Moves the pointer over the token at `index`."""
        if self._pointer and ids[self._pointer] == ids[index]:
            self._pointer += 1
            self.length = min(self.length + 1, _MOST_LENGTH)
            return
        key = tuple(ids[index + 1 - LEAST : index + 1])
        place = self._places.get(key) or self._older.get(key) or 0
        if place:
            self._pointer, self.length = place, _agreement(ids, place, index + 1)
        elif self._pointer and self.length >= LEAST:  # one token was exchanged, as edits do
            self._pointer, self.length = self._pointer + 1, 0
        else:
            self._pointer = self.length = 0

    def _remember(self, ids: Seq[int], end: int) -> None:
        """Notes that the text up to `end` ended in its last tokens."""
        if end < LEAST:
            return
        if len(self._places) >= _MOST_PLACES:
            self._older, self._places = self._places, {}
        self._places[tuple(ids[end - LEAST : end])] = end

    def _remember_all(self, ids: Seq[int], start: int, end: int) -> None:
        """Notes the same of each place after `start` up to `end`, in a tenth of the time."""
        first = max(start + 1, LEAST)
        if end < first:
            return
        if len(self._places) >= _MOST_PLACES:
            self._older, self._places = self._places, {}
        last = (ids[first - LEAST + at : end - LEAST + at + 1] for at in range(LEAST))
        self._places.update(zip(zip(*last, strict=True), range(first, end + 1), strict=True))


def _agreement(ids: Seq[int], one: int, other: int) -> int:
    """Tokens that agree before two places of a text."""
    length = 0
    while length < min(one, _MOST_LENGTH) and ids[one - 1 - length] == ids[other - 1 - length]:
        length += 1
    return length
