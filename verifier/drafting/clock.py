"""How long to wait for one drafter, and when to stop asking it for a while."""

from __future__ import annotations

from copy import copy

from verifier.drafting.length import CostLine

_SMOOTHING = 0.2
_LEAST_PATIENCE_S = 0.02
_MOST_PATIENCE_S = 0.5
_SILENCE_S, _STILL_S = 1.0, 0.1
"""Without an answer before a drafter is left alone, at first and after a pause."""
_FIRST_PAUSE_S = 0.25
_MOST_PAUSE_S = 8.0
_HANGS_PAUSES = 3
"""One that has not answered before so many hangs."""

_FAR = 3.0
"""A round that took so many times what was expected counts as if it had taken that."""

_PROBES_COST = 0.005
"""Share of the time that probes of a drafter that does not pay may take."""

_MOST_UNPROBED_S = 60.0
"""The longest time between two, though they take more: it may have been held up just once."""

_EAGER = 16
"""So many times as often as that the first probe comes after drafts have paid, each further one
half as often: a busy moment of the processors is over soon."""

_SOONER = 0.7
"""Where a probe comes in so much of the time expected, what was seen before it is long past."""


class Silence:
    """For how long a drafter has not answered anyone.

    After a second of asking it is left alone for a pause that doubles each time, so that one that
    hangs costs a bounded share of time. Single late branches, as when it prefills for a newcomer,
    do not count against it.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until = 0.0
        self._pauses = 0  # since it answered, or hung

    def paused(self, now: float) -> bool:
        """Whether to leave it alone, at `now` seconds of the monotonic clock."""
        return now < self._paused_until

    def broken(self) -> None:
        """It has answered."""
        self._since, self._pause_s, self._pauses = None, _FIRST_PAUSE_S, 0

    def missed(self, asked: float, now: float) -> bool:
        """A branch did not come in time.

        Args:
            asked: When it was asked for, in seconds of the monotonic clock.
            now: The same clock.

        Returns:
            Whether it hangs, as it has not answered between pauses either: its stream is to end.
        """
        if self._since is None:
            self._since = asked
        if now - self._since < _SILENCE_S:
            return False
        self._paused_until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        self._since = self._paused_until - (_SILENCE_S - _STILL_S)
        self._pauses += 1
        if self._pauses < _HANGS_PAUSES:
            return False
        # Its next stream has longer pauses: it may be slow at first, with all mirrors to make anew.
        self._since, self._pauses = None, 0
        return True


class DraftClock:
    """How fast one drafter answers, over all sessions that it drafts for of one kind.

    Args:
        silence: The drafter's, whatever it drafts for.
    """

    def __init__(self, silence: Silence) -> None:
        self.silence = silence
        """For how long it has not answered."""
        self.answer_s: float | None = None
        """Moving average from commit to branch, the drafting included, in seconds."""
        self.cost = CostLine()
        """The same, by tokens drafted."""
        self.slowness = 1.0
        """What rounds took over what they were expected to."""
        self.probe_at = 0.0
        """When to find out whether a drafter pays that did not, in seconds of the monotonic
        clock."""
        self.foresight = 0.0
        """Share of drafts whose next branch was there at once."""
        self._held_up = False  # the last answer took far longer than expected
        self._eager = _EAGER

    @property
    def patience_s(self) -> float:
        """How long to wait for a branch, in seconds."""
        if self.answer_s is None:
            return _MOST_PATIENCE_S
        return min(max(4 * self.answer_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)

    def like(self) -> DraftClock:
        """One that begins with what this one knows of answers."""
        other = DraftClock(self.silence)
        other.answer_s, other.cost = self.answer_s, copy(self.cost)
        other.slowness, other.foresight = self.slowness, self.foresight
        return other

    def answered(self, tokens: int, seconds: float, *, probe: bool = False) -> None:
        """A branch came.

        One that took far longer than expected says nothing of the next: the drafter may have begun
        some text anew. Two in a row do.

        Args:
            tokens: Its length.
            seconds: Since it was asked for.
            probe: Whether it was asked for after drafts had not paid for a while.
        """
        if self.answer_s is not None:  # the first pays for what is set up once
            expected_s = self.cost.at(tokens)
            if probe and seconds < _SOONER * expected_s:
                self.cost = CostLine()
            alone = not self._held_up
            self._held_up = 0 < _FAR * expected_s < seconds
            if not (self._held_up and alone):
                self.cost.add(tokens, seconds)
        previous = self.answer_s
        self.answer_s = (
            seconds if previous is None else previous + _SMOOTHING * (seconds - previous)
        )
        self.silence.broken()

    def foresaw(self, hit: bool) -> None:
        """A draft was checked; the branch after it was there already, or not."""
        self.foresight += _SMOOTHING / 4 * (hit - self.foresight)

    def took(self, seconds: float, expected_s: float) -> None:
        """A round with a draft is over.

        Args:
            seconds: Since the end of the one before.
            expected_s: What it was expected to take; more than 0.
        """
        self.slowness += _SMOOTHING / 4 * (min(seconds / expected_s, _FAR) - self.slowness)

    def probed(self, now: float, seconds: float) -> None:
        """A probe begins, at `now` on the monotonic clock, and costs so many seconds."""
        self.probe_at = now + min(seconds / (self._eager * _PROBES_COST), _MOST_UNPROBED_S)
        self._eager = max(self._eager // 2, 1)

    def paid(self) -> None:
        """Drafts pay, as far as is known."""
        self._eager = _EAGER
