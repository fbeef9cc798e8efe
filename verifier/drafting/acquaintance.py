"""What is known of a drafter, by the kind of text that it drafts for.

How often it is right hangs on how much stands before its drafts: small models are trained on short
texts, and the bundled one, on 400 tokens at a time, is right 76 times of a hundred behind 330
tokens and 29 times behind 1,430. How fast it answers hangs on that, too, and on whether it says
what it draws from. So what short texts have shown decides nothing for long ones.
"""

from __future__ import annotations

from typing import NamedTuple

from common.text_length import doublings
from verifier.drafting.clock import DraftClock, Silence
from verifier.drafting.length import Acceptance

_FORGET = 0.998
_LEAST_DRAFTS = 16
"""Rounds with a draft before it is told how often tokens are right."""


class TextKind(NamedTuple):
    """Texts for which drafts are alike."""

    drawn: bool = False
    """Whether the drafter says what it draws from: that takes longer, and nothing goes ahead."""
    length: int = 0
    """See `doublings`."""

    @classmethod
    def of(cls, drawn: bool, tokens: int) -> TextKind:
        """That of a text of so many tokens."""
        return cls(drawn, doublings(tokens))


class Acquaintance:
    """What is known of one drafter with one kind of text.

    Args:
        clock: How fast it answers.
    """

    def __init__(self, clock: DraftClock) -> None:
        self.clock = clock
        """How fast it answers."""
        self._odds = Acceptance(forget=_FORGET)
        self._rounds = 0  # with a draft

    @property
    def token_acceptance(self) -> float | None:
        """Chance that a draft token is right where those before it were; None while too few are
        known."""
        return self._odds.rate if self._rounds >= _LEAST_DRAFTS else None

    def checked(self, tested: int, accepted: int) -> None:
        """Takes a round that checked a draft.

        Args:
            tested: Its tokens, up to the text's end.
            accepted: How many were committed.
        """
        self._rounds += 1
        self._odds.observe(tested, accepted)


class Acquaintances:
    """What is known of one drafter."""

    def __init__(self) -> None:
        self.silence = Silence()
        """For how long it has not answered, whatever the kind of text."""
        self._of: dict[TextKind, Acquaintance] = {}

    def of(self, kind: TextKind) -> Acquaintance:
        """With one kind of text; at first how fast it answers texts of the length next to it."""
        found = self._of.get(kind)
        if found is None:
            found = self._of[kind] = Acquaintance(self._clock(kind))
        return found

    def _clock(self, kind: TextKind) -> DraftClock:
        alike = [each for each in self._of if each.drawn == kind.drawn]
        if not alike:
            return DraftClock(self.silence)
        nearest = min(alike, key=lambda each: abs(each.length - kind.length))
        return self._of[nearest].clock.like()
