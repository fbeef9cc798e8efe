"""How often a method's ids were others than those of plain decoding, and where that began.

Only counts and places are kept, never ids: what the sweep of the promise prints may be shown to
anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from paceline import Result

from bench.cases import Case


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where ids began to differ."""

    prompt: int
    """Which of the bundled prompts, from 0."""
    prompt_tokens: int
    """How many of its first tokens were asked with."""
    drawn: bool
    """Whether tokens were drawn."""
    seed: int
    """Key of the noise, and the case's number."""
    position: int
    """Of the first id that differs, from 0, in the output."""


@dataclass(kw_only=True)
class Tally:
    """What one method came to."""

    method: str
    """As it was asked for."""
    dtype: str
    """torch dtype of the weights."""
    greedy: int = 0
    """Generations that took the likeliest tokens."""
    drawn: int = 0
    """Generations that drew them."""
    tokens: int = 0
    """Generated."""
    passes: int = 0
    """Of the target, for those."""
    differing_tokens: int = 0
    """Places in the output where the ids are others, or only one of the two texts has any."""
    differing_generations: int = 0
    """Generations with such places."""
    first: Place | None = None
    """The first of them, in the order of the cases."""

    @property
    def tokens_per_pass(self) -> float:
        """Of the target."""
        return self.tokens / self.passes if self.passes else 0.0

    def add(self, case: Case, result: Result, plain: Sequence[int]) -> None:
        """Take a generation into account.

        Args:
            case: What was asked for.
            result: What came.
            plain: Ids of plain decoding.
        """
        self.drawn += case.drawn
        self.greedy += not case.drawn
        self.tokens += len(result.token_ids)
        self.passes += result.speculation.rounds
        places = differing(result.token_ids, plain)
        self.differing_tokens += len(places)
        self.differing_generations += bool(places)
        if places and (self.first is None or case.seed < self.first.seed):
            self.first = Place(
                prompt=case.prompt,
                prompt_tokens=len(case.ids),
                drawn=case.drawn,
                seed=case.seed,
                position=places[0],
            )


def differing(ids: Sequence[int], plain: Sequence[int]) -> list[int]:
    """Return the places at which two texts do not have the same id."""
    pairs = zip_longest(ids, plain)
    return [at for at, (one, other) in enumerate(pairs) if one != other]
