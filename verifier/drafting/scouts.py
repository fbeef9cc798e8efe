"""Texts that draft whatever the load, to find out what a drafter is worth that nobody knows yet."""

from __future__ import annotations

from verifier.sequence import Sequence

_MOST = 4
"""One after the other, since a drafter was known: it may not answer."""


class Scouts:
    """At most one text at a time."""

    def __init__(self) -> None:
        self._now: Sequence | None = None
        self._tried = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence is self._now

    def offer(self, sequence: Sequence) -> None:
        """Takes a text for one, if none is under way and few have tried in vain."""
        if self._now is None and self._tried < _MOST and sequence.request.drafters:
            self._now, self._tried = sequence, self._tried + 1

    def learnt(self) -> None:
        """A drafter is known: none is needed until there is another that is not."""
        self._now, self._tried = None, 0

    def over(self, sequence: Sequence) -> None:
        """A text is done."""
        if sequence is self._now:
            self._now = None
