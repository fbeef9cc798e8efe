"""`auto`: which method a request runs, by what each has been worth here so far.

Worth is measured over whole requests: tokens committed in the time a plain step takes, so that
figures from quiet and from busy times compare. It is kept apart by domain, which is what decides
how well guesses go: how much a prompt repeats itself, and whether tokens are drawn or the likeliest
taken. And it is kept apart by tenant, so that none can spoil another's choices, or learn from them
what the other sends; what all have measured is only where each begins.

Looking around is bounded: every method is tried twice at first, once by each tenant in each domain,
and now and then later, and then only if it was not far behind. Trials in which texts ended too soon
to say anything are made up for once others are long enough. The text is the same whichever runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from verifier.cost import StepCost
from verifier.sequence import Request, Sequence

_TRIALS = 2
_EARLY_EVERY = 4
_TRY_EVERY = 16
"""Requests of one tenant and domain between two trials: while some method is new, and later."""
_FAR_BEHIND = 0.5
"""Methods worth less than this share of the best are tried again in one trial of four only."""
_SMOOTHING = 0.3
_BELIEF = 1.0
"""Requests that what others have measured counts for."""
_LEAST_TOKENS = 8
"""Shorter outputs say nothing about speed."""
_SOME_REPEATS, _MANY_REPEATS = 0.05, 0.2
_NGRAM = 3
_LOOKED_AT = 1024
_MOST_TENANTS = 256

JOINED = ("draft+ngram", "eagle+ngram", "medusa+ngram")
"""Hybrids among the candidates, where their members are on offer."""


@dataclass(frozen=True)
class Domain:
    """What kind of request one is."""

    repeats: int
    """How much the prompt says twice: 0 hardly anything, 1 some, 2 much."""
    drawn: bool
    """Whether tokens are drawn at random."""


@dataclass
class _Record:
    begun: int = 0
    last: int = 0  # number of the latest begun
    measured: float = 0.0  # how many were
    worth: float = 0.0
    tried: int = 0  # how many began since any method was measured

    def learn(self, worth: float) -> None:
        share = max(_SMOOTHING, 1 / (self.measured + 1))
        self.measured += 1
        self.worth += share * (worth - self.worth)


class _Records:
    """What is known of all methods for one tenant's requests of one domain, or for everybody's."""

    def __init__(self) -> None:
        self.requests = 0
        self.measured = 0
        self._of: dict[str, _Record] = {}

    def of(self, method: str) -> _Record:
        return self._of.setdefault(method, _Record())

    def begin(self, method: str) -> None:
        self.requests += 1
        record = self.of(method)
        record.begun += 1
        record.last = self.requests
        record.tried += self.measured > 0

    def learn(self, method: str, worth: float) -> None:
        self.measured += 1
        self.of(method).learn(worth)


class MethodChoice:
    """Chooses for requests that leave it open. Used on the engine's thread.

    Args:
        methods: On offer, each by itself.
        cost: Of the engine's steps.
    """

    def __init__(self, methods: Seq[str], cost: StepCost) -> None:
        joined = (name for name in JOINED if set(name.split("+")) <= set(methods))
        self._methods = (*methods, *joined)
        self._cost = cost
        self._everybody = _Records()
        self._own: dict[bytes, dict[Domain, _Records]] = {}

    def choose(self, request: Request) -> str:
        """The method for a request; its own where it names one."""
        if request.method != "auto":
            return request.method
        offered = [
            name for name in self._methods if request.drafters or "draft" not in name.split("+")
        ]
        own = self._records(request)
        chosen = self._pick(offered, own)
        for records in (own, self._everybody):
            records.begin(chosen)
        return chosen

    def learn(self, sequence: Sequence, seconds: float, tokens: int) -> None:
        """Takes a finished sequence.

        Args:
            sequence: Whose.
            seconds: From its first tokens to its last.
            tokens: Committed in that time.
        """
        if tokens < _LEAST_TOKENS or seconds <= 0:
            return
        worth = tokens / seconds * self._cost.round_s(0)
        for records in (self._records(sequence.request), self._everybody):
            records.learn(sequence.method, worth)

    def _pick(self, offered: Seq[str], own: _Records) -> str:
        unknown = [name for name in offered if self._everybody.of(name).begun < _TRIALS]
        if unknown:
            return min(unknown, key=lambda name: self._everybody.of(name).begun)
        worth = {name: self._worth(name, own) for name in offered}
        best = max(offered, key=worth.__getitem__)
        turn = own.requests + 1
        new = [name for name in offered if not own.of(name).begun or self._owed(name)]
        if new and turn % _EARLY_EVERY == 0:
            return max(new, key=lambda name: (worth[name], -own.of(name).last))
        if turn % _TRY_EVERY == 0:
            anybody = turn % (4 * _TRY_EVERY) == 0
            near = (n for n in offered if anybody or worth[n] >= _FAR_BEHIND * worth[best])
            return _longest_ago(near, own)
        return best

    def _owed(self, method: str) -> bool:
        """Whether a method was never measured although others are; less and less often where its
        trials come to nothing, as most do where most texts are short."""
        all_ = self._everybody.of(method)
        return not all_.measured and all_.tried**2 < self._everybody.measured

    def _worth(self, method: str, own: _Records) -> float:
        """A method's worth for requests like this one; at first what it is elsewhere."""
        mine, all_ = own.of(method), self._everybody.of(method)
        if not all_.measured:
            return 0.0
        return (mine.measured * mine.worth + _BELIEF * all_.worth) / (mine.measured + _BELIEF)

    def _records(self, request: Request) -> _Records:
        """Those of the request's tenant and domain; the tenant longest unseen is forgotten."""
        own = self._own.pop(request.cache_salt, {})
        self._own[request.cache_salt] = own
        if len(self._own) > _MOST_TENANTS:
            del self._own[next(iter(self._own))]
        return own.setdefault(domain(request), _Records())


def domain(request: Request) -> Domain:
    """The kind of a request."""
    share = repeated(request.prompt_ids)
    repeats = (share >= _SOME_REPEATS) + (share >= _MANY_REPEATS)
    return Domain(repeats, not request.sampling.greedy)


def repeated(ids: Seq[int]) -> float:
    """Share of a text's last n-grams that occurred before."""
    ids = ids[-_LOOKED_AT:]
    ngrams = [tuple(ids[at : at + _NGRAM]) for at in range(len(ids) - _NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def _longest_ago(methods: Iterable[str], own: _Records) -> str:
    return min(methods, key=lambda name: own.of(name).last)
