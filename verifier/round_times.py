"""How long the parts of a round took, for requests that want to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """One round; times are seconds of the monotonic clock and do not fall from one to the next."""

    began_s: float
    """The round before was committed, or the request came."""
    sent_s: float
    """Since then its draft was made, and from now on it was on its way: estimated from what the
    way takes on average. Where no draft was waited for this is `began_s`."""
    ready_s: float
    """The draft had come, or was no longer waited for."""
    started_s: float
    """The first step in which the sequence took part began."""
    verified_s: float
    """The last forward pass was over, and every node had its token."""
    committed_s: float
    """The outcome was committed."""
    drafted: int
    """Draft tokens checked."""
    accepted: int
    """Draft tokens committed."""


class Stopwatch:
    """Times the rounds of one sequence; on the engine's thread.

    Args:
        now: When the request came.
    """

    def __init__(self, now: float) -> None:
        self._began_s = now
        self._started_s: float | None = None  # of the first step of this round
        self._verified_s = now  # of its last one

    def stepped(self, started_s: float, verified_s: float) -> None:
        """Notes a step in which the sequence took part.

        Args:
            started_s: When it began.
            verified_s: When its forward pass was over.
        """
        if self._started_s is None:
            self._started_s = started_s
        self._verified_s = verified_s

    def lap(
        self, now: float, *, ready_s: float, wire_s: float, drafted: int, accepted: int
    ) -> RoundTimes:
        """Ends a round, and begins the next.

        Args:
            now: When it was committed.
            ready_s: When its draft had come; long ago where none was waited for.
            wire_s: What the way to the drafter and back takes on average.
            drafted: Draft tokens checked.
            accepted: Draft tokens committed.
        """
        assert self._started_s is not None, "a round has a step"
        ready_s = min(max(ready_s, self._began_s), self._started_s)
        times = RoundTimes(
            began_s=self._began_s,
            sent_s=max(ready_s - wire_s, self._began_s),
            ready_s=ready_s,
            started_s=self._started_s,
            verified_s=self._verified_s,
            committed_s=now,
            drafted=drafted,
            accepted=accepted,
        )
        self._began_s, self._started_s = now, None
        return times
