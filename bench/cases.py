"""What the sweep of the promise asks for: texts to go on from and ways to choose tokens, no two
alike.

The bundled prompts come again and again, each time with another piece of their end cut off, so that
they differ and still begin alike, as prompts do whose keys and values are in the cache already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline import Client, Generation

CUT_TOKENS = 5
"""So much more of a prompt's end goes each time it comes again."""

TEMPERATURE, TOP_P = 0.8, 0.95

PENALTY = 1.1
PENALISED_EVERY = 5
"""One case in so many discourages tokens that were there already."""

LENGTH_EVERY = 4
MOST_LENGTH = 8
"""One case in so many names the length of its drafts, up to so many tokens; the others leave it to
the verifier, which may settle on none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to generate."""

    prompt: int
    """Which of the bundled prompts, from 0."""

    ids: tuple[int, ...]
    """What is left of it."""

    drawn: bool
    """Whether tokens are drawn; otherwise the likeliest is taken."""

    seed: int
    """Key of the noise, and the case's number."""

    repetition_penalty: float
    """1 where there is none."""

    draft_tokens: int
    """Most draft tokens in a round; 0 leaves it to the verifier."""

    def start(self, client: Client, method: str, max_tokens: int) -> Generation:
        """Ask for it."""
        return client.generate(
            token_ids=self.ids,
            method=method,
            max_tokens=max_tokens,
            temperature=TEMPERATURE if self.drawn else 0.0,
            top_p=TOP_P if self.drawn else 1.0,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            draft_tokens=self.draft_tokens,
        )


def make(prompts: Sequence[Sequence[int]], count: int) -> list[Case]:
    """Make so many cases, every other one drawn; the same ones each time.

    Args:
        prompts: Ids of the bundled prompts.
        count: How many cases.
    """
    return [_case(prompts, number) for number in range(count)]


def _case(prompts: Sequence[Sequence[int]], number: int) -> Case:
    again, prompt = divmod(number // 2, len(prompts))
    ids = prompts[prompt]
    named = number // 2 % LENGTH_EVERY == LENGTH_EVERY - 1
    return Case(
        prompt=prompt,
        ids=tuple(ids[: len(ids) - again * CUT_TOKENS % len(ids)]),
        drawn=number % 2 == 1,
        seed=number,
        repetition_penalty=PENALTY if number // 2 % PENALISED_EVERY == 1 else 1.0,
        draft_tokens=1 + number // 2 // LENGTH_EVERY % MOST_LENGTH if named else 0,
    )
