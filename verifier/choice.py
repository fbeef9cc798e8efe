"""`auto`: which method a request runs, by what each has been worth here so far.

Worth is measured over whole requests: tokens committed in the time a plain step takes, so that
figures from quiet and from busy times compare. It is kept apart for prompts that repeat
themselves and those that do not, since that is what decides whether looking text up pays. Every
method is tried twice at first and once in a while later; the text is the same whichever runs.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from verifier.cost import StepCost
from verifier.sequence import Request, Sequence

_TRIALS = 2
_TRY_EVERY = 16
_SMOOTHING = 0.3
_LEAST_TOKENS = 8
"""Shorter outputs say nothing about speed."""
_REPEATING = 0.2
_NGRAM = 3
_LOOKED_AT = 4096


@dataclass
class _Record:
    requests: int = 0  # begun
    last: int = 0  # number of the latest
    worth: float | None = None

    def learn(self, worth: float) -> None:
        previous = worth if self.worth is None else self.worth
        self.worth = previous + _SMOOTHING * (worth - previous)


class MethodChoice:
    """Chooses for requests that leave it open. Used on the engine's thread.

    Args:
        methods: On offer.
        cost: Of the engine's steps.
    """

    def __init__(self, methods: Ids[str], cost: StepCost) -> None:
        self._methods = tuple(methods)
        self._cost = cost
        self._records: dict[tuple[bool, str], _Record] = {}
        self._requests = 0

    def choose(self, request: Request) -> str:
        """The method for a request; its own where it names one."""
        if request.method != "auto":
            return request.method
        self._requests += 1
        domain = repeats(request.prompt_ids)
        records = {
            name: self._records.setdefault((domain, name), _Record())
            for name in self._methods
            if name != "draft" or request.drafters
        }
        chosen = self._best(records)
        records[chosen].requests += 1
        records[chosen].last = self._requests
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
        domain = repeats(sequence.request.prompt_ids)
        record = self._records.setdefault((domain, sequence.method), _Record())
        record.learn(tokens / seconds * self._cost.round_s(0))

    def _best(self, records: dict[str, _Record]) -> str:
        untried = [name for name, record in records.items() if record.requests < _TRIALS]
        if untried:
            return min(untried, key=lambda name: records[name].requests)
        if self._requests % _TRY_EVERY == 0:
            return min(records, key=lambda name: records[name].last)
        return max(records, key=lambda name: records[name].worth or 0.0)


def repeats(ids: Ids[int]) -> bool:
    """Whether a text says things twice: a fifth of its last n-grams occurred before."""
    ids = ids[-_LOOKED_AT:]
    ngrams = [tuple(ids[at : at + _NGRAM]) for at in range(len(ids) - _NGRAM + 1)]
    return bool(ngrams) and 1 - len(set(ngrams)) / len(ngrams) >= _REPEATING
