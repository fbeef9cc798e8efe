"""Whether drafts pay while several sequences run: found by trying both.

What a draft costs beside others is more than its rows: what makes it takes the engine's thread, or
shares processors and memory with the target, and sequences that wait for a drafter fall out of
step. None of that shows in the time of a step. So with two or more sequences drafting is switched
on and off for short windows, and tokens a second decide: those of all sequences, whatever drafts
for them, for all of them pay. A window with drafts begins once there are some: drafters that are
only just told of the texts say nothing of drafting. Loads are judged apart, each about twice the
one before; sequences that end as others begin do not make another load, and what begins one,
prompts above all, is part of no window. A window that a change of load ends tells, too, where it
has lasted long enough: bursts of texts leave no longer ones. Where bursts follow one another, the
first texts of each have no drafts while the others come, if those do not pay beside all of them.
One sequence alone is left to the method, and to `Solo`.

Gates of several methods take turns to try something: else each would see what all of them did.
"""

from __future__ import annotations

from collections.abc import Callable

from verifier.gates.contest import Contest
from verifier.gates.crowd import Crowd
from verifier.gates.load import LoadLevel, level_of

_WINDOW_S = 0.3
_SHORT_WINDOW_S, _ENOUGH_TOKENS = 0.2, 512
"""A window ends sooner where so much has come in it already: but not before texts that began
together have ended, and the prompts of the next ones are computed."""

_LONG_WINDOW_S, _LEAST_TOKENS = 1.5, 64
"""And later where less has: a few steps of a large model tell little."""

_SHORTEST_WINDOW_S, _SOME_TOKENS = 0.1, 128
"""And at once where so much is far less than in the other mode: that is what trials cost."""

_JOINING_S = 1.0
"""Drafts are not waited for any longer before the window begins; prompts no longer than a window
may last."""

_ABSENT_S = 0.6
"""After so long without a look nobody was there for part of the window."""

_LOOKED_AT_S = 0.002
"""Between two looks at the load: all sequences of a step ask."""


class Gate:
    """Decides for all sequences of a proposer together.

    Args:
        crowd: All sequences of the engine.
        first: Whether a load's first window is with drafts, unless they lose beside about as many.
            Not where what drafting begins outlasts it: texts that begin together are many loads on
            their way.
        foretell: What is to be expected of drafts beside so many sequences, where no load has
            shown it: whether they pay, or None.
    """

    def __init__(
        self,
        crowd: Crowd,
        *,
        first: bool,
        foretell: Callable[[int], bool | None] = lambda sequences: None,
    ) -> None:
        self._crowd, self._first, self._foretell = crowd, first, foretell
        self._levels: dict[int, Contest] = {}
        self._load = LoadLevel()
        self._level = 0  # of the window now open; 0 where there is none
        self._mode = True
        self._begun, self._since = 0.0, 0.0  # its mode, and the window itself
        self._idle_s = 0.0  # nobody was there, when that was asked last
        self._before = 0  # tokens when it began
        self._turns = 0  # that had been begun then
        self._gave = False  # its own away, with the window open
        self._joined = 0  # drafts since, and texts that are to have none
        self._joining = False  # until there are enough of them
        self._starting = False  # until prompts of what made the load are computed

    def drafting(self, sequences: int, now: float) -> bool:
        """Whether to draft.

        Args:
            sequences: That could, of this proposer.
            now: Seconds, of the monotonic clock.
        """
        return self._look(sequences, now) and not self._in_the_way(now)

    def _in_the_way(self, now: float) -> bool:
        """Whether texts are about to begin beside which drafts do not pay: the first few would get
        theirs while the others wait for their prompts."""
        level = level_of(self._crowd.gathering(now))
        if level in (0, self._level):  # the mode is of just that load, perhaps on trial
            return False
        known = self._levels.get(level)
        settled = known.settled if known is not None else None
        return (self._implied(level) if settled is None else settled) is False

    def _look(self, sequences: int, now: float) -> bool:
        """The mode of the window that is open, or of another that begins."""
        seen_at = self._load.seen_at
        if self._level and seen_at <= now < seen_at + _LOOKED_AT_S:
            return self._mode
        absent = self._lost_turn(now) or now >= seen_at + _ABSENT_S
        idle_s = self._skip(self._crowd.idle_s)
        level = self._load.see(self._crowd.sequences, now, idle_s)
        if level != self._level and not absent and self._tokens >= _SOME_TOKENS:
            self._end(now, _SHORT_WINDOW_S)
        if not level:
            self._level = 0
            self._crowd.give(self)
            return True
        if level != self._level or absent:  # what was counted so far belongs to no load
            self._start(level, now, starting=True)
        elif self._joining or self._starting:
            waited = now - self._since
            self._joining &= self._joined < sequences and waited < _JOINING_S
            if self._starting:
                self._begun = now
            self._starting &= self._crowd.starting > 0 and not self._lasted(waited)
            if not self._joining and not self._starting:
                self._since, self._before = now, self._crowd.tokens
        elif self._over(now - self._since):
            self._end(now)
            self._start(level, now)
        return self._mode

    def joined(self) -> None:
        """Takes note of a draft, or of a text that is to have none."""
        self._joined += 1

    def left(self) -> None:
        """Takes note that its proposer has no sequence now: others may try something."""
        self._gave |= self._crowd.give(self)

    @property
    def _tokens(self) -> int:
        """Of the window, so far."""
        return self._crowd.tokens - self._before

    def _over(self, seconds: float) -> bool:
        """Whether a window that has lasted so long tells enough."""
        tokens, contest = self._tokens, self._levels[self._level]
        if tokens >= _SOME_TOKENS and contest.hopeless(self._mode, tokens, seconds):
            return seconds >= _SHORTEST_WINDOW_S
        if tokens >= _ENOUGH_TOKENS:
            return seconds >= _SHORT_WINDOW_S
        return self._lasted(seconds)

    def _lasted(self, seconds: float) -> bool:
        """Whether a window of so many seconds is one of the usual length."""
        return seconds >= (_WINDOW_S if self._tokens >= _LEAST_TOKENS else _LONG_WINDOW_S)

    def _lost_turn(self, now: float) -> bool:
        """Whether another took the turn while no sequence was here; else it is taken again."""
        gave, self._gave = self._gave, False
        if gave and self._turns == self._crowd.turns:
            self._crowd.take(self, now)
            self._turns = self._crowd.turns
            return False
        return gave

    def _skip(self, idle_s: float) -> float:
        """Leaves out of the window what nobody was there for: clients pause between bursts."""
        idle, self._idle_s = idle_s - self._idle_s, idle_s
        self._begun, self._since = self._begun + idle, self._since + idle
        return idle

    def _end(self, now: float, least_s: float = 0.0) -> None:
        """Takes the window, if it tells something and has lasted so long at least."""
        seconds = now - self._since
        tells = self._level and not self._joining and not self._starting
        if tells and seconds >= least_s and self._turns == self._crowd.turns:
            lead = (self._since - self._begun) / seconds
            self._levels[self._level].learn(self._mode, self._tokens / seconds, lead)

    def _start(self, level: int, now: float, *, starting: bool = False) -> None:
        before = self._mode and level == self._level
        self._starting = starting
        contest = self._levels.setdefault(level, Contest())
        first = self._first and self._nearby(level)
        self._mode = contest.next_mode(self._guess(level), first=first)
        self._crowd.give(self)
        # Whose turn it is not does what it is sure of, and without drafts where that is nothing.
        if self._mode != contest.settled and not self._crowd.take(self, now):
            self._mode = bool(contest.settled)
        # Where it is another's, that one's trial is part of this window.
        self._turns = -1 if self._crowd.taken(self, now) else self._crowd.turns
        self._level, self._begun, self._since = level, now, now
        self._before = self._crowd.tokens
        self._joined, self._joining = 0, self._mode and not before

    def _nearby(self, level: int) -> bool:
        """The better mode beside about as many, with drafts where nothing is known: loads that are
        too short to tell are as those around them."""
        known = [other for other, contest in self._levels.items() if contest.verdict is not None]
        if not known:
            return True
        nearest = min(known, key=lambda other: (abs(other - level), -other))
        return bool(self._levels[nearest].verdict)

    def _guess(self, level: int) -> bool | None:
        """What other loads say, and where they say nothing, what is foretold of this one."""
        implied = self._implied(level)
        return self._foretell(1 << level) if implied is None else implied

    def _implied(self, level: int) -> bool | None:
        """What pays beside many pays beside few, and the other way round."""
        for other, contest in self._levels.items():
            if contest.verdict is (other > level) and other != level:
                return contest.verdict
        return None
