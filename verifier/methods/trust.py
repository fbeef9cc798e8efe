"""How far guesses of the tokens to come can be trusted, by how far ahead they are.

For methods that say of each guess how likely it is, given that all before it were right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from verifier.proposer import Outcome
from verifier.sequence import Sequence

_FORGET = 0.98
_PRIOR = 4.0
_TRY_EVERY = 16

_REGAINED = 0.001
"""Part of the trust that is lost which comes back in a round without guesses so far ahead: those
that are no longer made would never be found right again."""


class Trust:
    """How often guesses so far ahead are right, against what is said of them.

    Args:
        factor: What is thought of them at first.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self._said, self._right = _PRIOR, _PRIOR * factor

    @property
    def factor(self) -> float:
        """What chances that are said have to be multiplied by."""
        return self._right / self._said

    def observe(self, said: float, right: int) -> None:
        """Takes guesses of a round.

        Args:
            said: What their chances add up to.
            right: How many of them were.
        """
        self._said = _FORGET * self._said + said
        self._right = _FORGET * self._right + right

    def rest(self) -> None:
        """Takes a round without any."""
        self._right += _REGAINED * (self._said - self._right)


class Trusts:
    """Of all depths: of all sequences, or of one that begins with what those taught.

    Args:
        depths: How many.
        all: Those of all sequences, which learn with it.
    """

    def __init__(self, depths: int, all: Trusts | None = None) -> None:
        self._all = all
        factors = [1.0] * depths if all is None else all.factors
        self._each = [Trust(factor) for factor in factors]

    @property
    def factors(self) -> list[float]:
        """By depth; see `Trust`."""
        return [each.factor for each in self._each]

    def learn(self, outcome: Outcome, chances: Mapping[int, float]) -> None:
        """Compares what was said of guesses below every accepted node with what was right.

        Where the text ended with one of them, nothing is known of those below it.

        Args:
            outcome: Of the round.
            chances: Of each guessed node of its tree.
        """
        tree, right = outcome.tree, {0, *outcome.accepted}
        deepest = max(map(tree.depths.__getitem__, chances), default=0)
        ended = len(outcome.accepted) == len(outcome.ids)
        followed = right.difference(outcome.accepted[-1:]) if ended else right
        said: dict[int, float] = {}
        hits: dict[int, int] = {}
        for node, chance in chances.items():
            if tree.parents[node] in followed:
                depth = tree.depths[node] - 1
                said[depth] = said.get(depth, 0.0) + chance
                hits[depth] = hits.get(depth, 0) + (node in right)
        for trusts in (self, self._all):
            if trusts is not None:
                for depth, chance in said.items():
                    trusts._each[depth].observe(chance, hits[depth])
                for trust in trusts._each[deepest : deepest + 1]:
                    trust.rest()


class Trials:
    """When a guess of a sequence is checked that does not seem to pay: at first, and now and then,
    or nothing would be learnt."""

    def __init__(self) -> None:
        self._idle = 0  # rounds in a row in which none seemed to

    def checked(self, worth: int) -> int:
        """How many are in a round, where so many seem to be worth it."""
        self._idle = 0 if worth else self._idle + 1
        return 1 if self._idle % _TRY_EVERY == 1 else worth


def draws(sequence: Sequence) -> bool:
    """Whether the target's own noise decides between guesses; other rules want none of it there."""
    request = sequence.request
    return request.acceptance == "coupled" and not request.sampling.greedy


def chances_of(behind: Seq[float], temperature: float) -> list[float]:
    """Chances of tokens by how far their scores, noise included, are behind the best.

    At most as sharply as they would be without noise: what guesses are wrong by grows with the
    scores where a temperature is low.
    """
    sharpness = min(temperature, 1.0)
    weights = [math.exp(-sharpness * gap) for gap in behind]
    total = sum(weights)
    return [weight / total for weight in weights]
