"""How many tokens to draft next: as many as pay, for one session, by what was measured.

With acceptance α a draft of K tokens commits E(K) = (1 - α^(K+1)) / (1 - α) tokens a round on
average, and a round takes verify(K) + draft(K) seconds, both measured. Where the drafter has
drafted for the outcome ahead of it, only that part of draft(K) is waited for that the pass did not
cover: with foresight f the wait is (1 - f) draft(K) + f max(draft(K) - verify(K), 0). The K with
the highest rate wins, zero included (Leviathan et al. 2023, with the costs of the critical path in
the denominator). A session that drafts nothing tries again after a while.

Texts that draft beside each other do not wait for one another: what one waits the steps of the
others fill, as far as there are enough. So with N of them a round of all takes verify of all their
rows at least, and of one text's rows and its wait at least. Where the former is much longer, little
is gained by drafting ahead, which keeps the drafter busy, and a verifier's processors on one
machine.

What one more token costs is also what says where a draft had better end: the drafter knows how
sure it is of every token, and stops where the chance that all of them are right, times the tokens
that come in a second, is not worth the time. The first few rows of a pass cost next to nothing
where reading weights is what takes it, and those after them much more; so each token has its price.

What rounds with drafts really took, over what was expected, is a factor on all of them: a step that
follows a wait meets cold caches, and answers wait for the engine. It decides between drafts and
none, hardly between lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from verifier.cost import StepCost

_FORGET_COST = 0.97
_FIRST_REST = 16
_MOST_REST = 256
_PROBE_TOKENS = 2
_MOST_LEAST = 0.9
_BUSY = 2.0
"""About how many times as long answers take of a drafter that several texts have drafting ahead:
else it would seem worth it because it is done."""

STANDS = 4
"""Rounds for which a choice stands in the same case: what it rests on changes little in a few, it
is flat at its best, and to make it takes a third of what a row does."""

_TRIAL_ROUNDS = 8
"""Rounds that a session drafts in any case where its drafter is not known yet."""


class CostLine:
    """Seconds as a straight line over tokens, fitted to what was seen, the latest counting most."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Takes a measurement."""
        self._n = _FORGET_COST * self._n + 1
        self._x = _FORGET_COST * self._x + tokens
        self._y = _FORGET_COST * self._y + seconds
        self._xx = _FORGET_COST * self._xx + tokens * tokens
        self._xy = _FORGET_COST * self._xy + tokens * seconds

    def at(self, tokens: int) -> float:
        """Seconds expected for so many tokens; 0 before the first measurement."""
        if not self._n:
            return 0.0
        x, y = self._x / self._n, self._y / self._n
        return max(y + self._slope(x, y) * (tokens - x), 0.0)

    def _slope(self, x: float, y: float) -> float:
        """Seconds a token, around the means."""
        spread = self._xx / self._n - x * x
        if spread < 0.25:  # hardly more than one length seen: the way costs as much as one token
            return y / (x + 1)
        return max((self._xy / self._n - x * y) / spread, 0.0)


class Acceptance:
    """Chance that the next draft token is right, given that those before it were.

    Args:
        prior: What to believe at first.
        weight: How many draft tokens that belief is worth.
        forget: Factor on the past with each round.
    """

    def __init__(self, prior: float = 0.7, weight: float = 24.0, forget: float = 0.95) -> None:
        self._accepted, self._tested = prior * weight, weight
        self._forget = forget

    @property
    def rate(self) -> float:
        """The estimate."""
        return self._accepted / self._tested

    def observe(self, drafted: int, accepted: int) -> None:
        """Learns from a round that checked `drafted` tokens."""
        if drafted:
            self._accepted = self._forget * self._accepted + accepted
            self._tested = self._forget * self._tested + min(accepted + 1, drafted)


class DraftLength:
    """One session's draft length.

    Args:
        acceptance: The session's estimate.
        trial: Rounds to draft in any case.
    """

    def __init__(self, acceptance: Acceptance, trial: int = _TRIAL_ROUNDS) -> None:
        self.acceptance = acceptance
        self._seconds: list[float] = []  # of rounds, by length; none where nothing was chosen
        self._rates: list[float] = []  # tokens a second by length, as last weighed
        self.least: tuple[float, ...] = ()
        """For the first token of a draft, the second and so on: the chance that all of it is right
        below which the token costs more than it brings. None where no length was ever chosen."""
        self.ahead = True
        """Whether it is worth drafting ahead: others do not fill the time that a draft takes."""
        self._best = 0  # as last chosen, for which case, and for how many further rounds
        self._case: tuple[int, bool] = (0, False)
        self._stands = 0
        self._trial = trial
        self._rest = _FIRST_REST
        self._resting = 0

    @property
    def resting(self) -> bool:
        """Whether drafts do not pay at present."""
        return self._resting > 0

    @property
    def forced(self) -> bool:
        """Whether what was chosen is a trial alone: none at all seemed better."""
        return not self._best or self._rates[0] >= self._rates[self._best]

    def observe(self, drafted: int, accepted: int) -> None:
        """Learns from a round that checked `drafted` tokens."""
        self._trial -= drafted > 0
        self.acceptance.observe(drafted, accepted)

    def expected_s(self, length: int) -> float:
        """What a round was expected to take as drafts were last chosen, in seconds.

        Args:
            length: Tokens that came of the draft.

        Returns:
            0 where none was to be.
        """
        return self._seconds[length] if length < len(self._seconds) else 0.0

    def reconsider(self) -> None:
        """Has the next choice made anew: what the last one rests on is long past."""
        self._stands = 0

    def stop_trial(self) -> None:
        """Drafts from now on only where that pays, and tries again late where it does not."""
        self._trial, self._rest = 0, _MOST_REST

    def choose(
        self,
        most: int,
        cost: StepCost,
        draft_s: Callable[[int], float],
        foresight: float = 0.0,
        slowness: float = 1.0,
        texts: int = 1,
        room: int | None = None,
    ) -> int:
        """The length for the next round.

        Args:
            most: Longest allowed; the same in every round.
            cost: Of the engine's steps.
            draft_s: Seconds from commit to branch, by length.
            foresight: Share of rounds after which the next branch was there at once.
            slowness: What rounds with drafts took over what was expected.
            texts: How many draft beside each other; above one, others in the step do not count.
            room: Longest in this round, where a text is about to end: what is worth waiting for
                may not be worth it for a token or two.

        Returns:
            0 to `most`, and to `room`.
        """
        room = most if room is None else min(most, room)
        if self._resting:
            self._resting -= 1
            return min(_PROBE_TOKENS, room) if self._resting == 0 else 0
        trial = self._trial > 0 and most > 0  # too early to give up
        if self._stands and self._case == (texts, trial):
            self._stands -= 1
        else:
            self._choose(most, cost, draft_s, foresight, slowness, texts, trial=trial)
            self._case, self._stands = (texts, trial), STANDS - 1 if self._best else 0
        return self._best if self._best <= room else self._best_of(room, trial=trial)

    def _choose(
        self,
        most: int,
        cost: StepCost,
        draft_s: Callable[[int], float],
        foresight: float,
        slowness: float,
        texts: int,
        *,
        trial: bool,
    ) -> None:
        """Sets the best length, and what follows from it; see `choose`."""
        verify = [cost.round_s(length) for length in range(most + 1)]
        draft = [draft_s(length) for length in range(most + 1)]
        rates, seconds = [_rate(cost, 0, 1.0, verify[0], 0.0, texts)], [0.0]
        expected = right = 1.0
        alpha, missed = self.acceptance.rate, 1 - foresight
        for length in range(1, most + 1):
            right *= alpha
            expected += right
            wait = foresight * max(draft[length] - verify[length], 0.0) + missed * draft[length]
            seconds.append(verify[length] + wait)
            rates.append(_rate(cost, length, expected, verify[length], wait, texts) / slowness)
        self._rates = rates
        best = self._best = self._best_of(most, trial=trial)
        self._seconds = seconds if best else []
        if most:
            rate = max(rates)
            drafts = _drafts_s(cost, verify, draft, missed, texts)
            worth = (max(rate * token_s, 0.0) for token_s in _slopes(drafts))  # rounded, else
            self.least = tuple(min(chance, _MOST_LEAST) for chance in worth)
            length = best or 1
            rows = 1 + length
            filled_s = cost.step_s(texts * rows) - cost.step_s(rows)
            self.ahead = texts == 1 or draft[length] > _BUSY * filled_s
        if best == 0 and most:
            self._resting = self._rest
            self._rest = min(2 * self._rest, _MOST_REST)
        elif best:
            self._rest = _FIRST_REST

    def _best_of(self, most: int, *, trial: bool) -> int:
        """The best length up to one, some at least on trial."""
        return max(range(min(1, most) if trial else 0, most + 1), key=self._rates.__getitem__)


def gain(
    acceptance: float,
    most: int,
    cost: StepCost,
    draft_s: Callable[[int], float],
    texts: int,
    processors: int = 0,
) -> float:
    """What the best drafts of several texts bring: tokens a second, over those without.

    What else they cost is left out, so it is more than they will bring.

    Args:
        acceptance: Chance that a draft token is right where those before it were.
        most: Longest draft.
        cost: Of the engine's steps.
        draft_s: Seconds from commit to branch, by length.
        texts: How many draft beside each other; two at least.
        processors: That the passes of so many texts take all of, and from which the drafter takes
            one for as long as a branch takes it; 0 where it has others.
    """
    best, expected, right = 0.0, 1.0, 1.0
    for length in range(1, most + 1):
        right *= acceptance
        expected += right
        wait = draft_s(length)
        taken = texts * wait / processors if processors else 0.0
        best = max(best, _rate_of_several(cost, length, expected, wait, texts, taken))
    return best / _rate_of_several(cost, 0, 1.0, 0.0, texts)


def _drafts_s(
    cost: StepCost, verify: list[float], draft: list[float], missed: float, texts: int
) -> list[float]:
    """Seconds that a draft of each length takes of everybody.

    Args:
        cost: Of the engine's steps.
        verify: Seconds of a round by length, from none up.
        draft: Seconds from commit to branch.
        missed: Share of rounds that wait for it.
        texts: How many draft beside each other.
    """
    if texts > 1:
        return [cost.step_s(texts * (1 + length)) / texts for length in range(len(verify))]
    waits = (missed * (seconds - draft[1]) for seconds in draft[1:])
    return [verify[0], *(check + wait for check, wait in zip(verify[1:], waits, strict=True))]


def _slopes(seconds: Sequence[float]) -> list[float]:
    """What each step on costs, at the least of those on average that follow at once.

    A row may cost little because those before it have paid, as where a kernel takes several.
    """
    slopes: list[tuple[float, int]] = []  # of stretches, rising, and how long they are
    for before, after in pairwise(seconds):
        slope, steps = after - before, 1
        while slopes and slopes[-1][0] >= slope:
            other, further = slopes.pop()
            slope = (slope * steps + other * further) / (steps + further)
            steps += further
        slopes.append((slope, steps))
    return [slope for slope, steps in slopes for _ in range(steps)]


def _rate(
    cost: StepCost, length: int, expected: float, verify_s: float, wait_s: float, texts: int
) -> float:
    """Tokens a second of everybody, where rounds have drafts of a length and wait for them."""
    if texts == 1:
        return cost.rate(expected, verify_s + wait_s)
    return _rate_of_several(cost, length, expected, wait_s, texts)


def _rate_of_several(
    cost: StepCost,
    length: int,
    expected: float,
    wait_s: float,
    texts: int,
    taken_s: float = 0.0,
) -> float:
    """The same where there are no others, and drafting takes so many seconds from the passes."""
    rows = 1 + length
    seconds = max(cost.step_s(texts * rows) + taken_s, cost.step_s(rows) + wait_s)
    return texts * expected / seconds
