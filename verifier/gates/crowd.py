"""All texts of an engine together, as those see them who decide for some of them."""

from __future__ import annotations

from verifier.totals import Totals

_GATHERING_S = 0.05
"""In which several have come, if they are to come together: one alone waits no longer for them."""

_LONGEST_S = 3.0
"""By then a trial is over, or its texts wait for something else than tokens."""


class Crowd:
    """Counts everybody, and gives turns to try something out.

    What one method does shows in what everybody writes, and so does what others do at the time. So
    one at a time leaves the mode that it goes on with.

    Args:
        totals: Of the engine.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._turn: object = None  # whose it is
        self._until = 0.0  # at the latest
        self.turns = 0
        """Begun so far."""

    @property
    def sequences(self) -> int:
        """That have begun and not ended."""
        return self._totals.sequences

    @property
    def starting(self) -> int:
        """Those of them whose prompt is still to be computed."""
        return self._totals.starting

    @property
    def tokens(self) -> int:
        """Committed so far."""
        return self._totals.tokens

    @property
    def idle_s(self) -> float:
        """Seconds in which there were none, before those that there are."""
        return self._totals.idle_s

    def gathering(self, now: float) -> int:
        """How many there are likely to be in a moment, by how many came at once the last time that
        one came where there was none; 0 once that moment is over."""
        over = now >= self._totals.busy_since + _GATHERING_S
        return 0 if over else self._totals.together_before

    def take(self, who: object, now: float) -> bool:
        """Takes the turn, at `now` seconds of the monotonic clock; False while another has it."""
        if self.taken(who, now):
            return False
        self._turn, self._until = who, now + _LONGEST_S
        self.turns += 1
        return True

    def taken(self, who: object, now: float) -> bool:
        """Whether another has the turn."""
        return self._turn not in (None, who) and now < self._until

    def give(self, who: object) -> bool:
        """Gives the turn back, if it is theirs; whether it was."""
        theirs = self._turn is who
        if theirs:
            self._turn = None
        return theirs
