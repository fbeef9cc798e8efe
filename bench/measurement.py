"""What one pass over the prompts measured, prompt by prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from paceline import Speculation


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt, decoded once."""

    ids: tuple[int, ...]
    """What came, up to and with the first end token."""

    tokens: int
    """How many of them came after the first message, which is where the clock starts."""

    seconds: float
    """From the first message to the last."""

    speculation: Speculation | None = None
    """What speculation did, where the variant knows."""

    prompt_tokens: int = 0
    """Of the prompt as it was asked; 0 where nobody counted how many of them were cached."""

    cached_tokens: int = 0
    """Of those, the ones whose keys and values were there already."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of a variant over the prompts."""

    samples: tuple[Sample, ...]
    """In the order of the prompts."""

    tokens: int
    """Tokens that the clock saw."""

    seconds: float
    """Time they took: of all samples together, or by the clock on the wall where they ran at the
    same time."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Self:
        """Add up samples that ran one after the other."""
        return cls(
            samples=tuple(samples),
            tokens=sum(sample.tokens for sample in samples),
            seconds=sum(sample.seconds for sample in samples),
        )

    @property
    def tokens_per_s(self) -> float:
        """Total tokens over total time, never a mean of rates."""
        return self.tokens / self.seconds if self.seconds else 0.0


def kept(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    """Return the ids up to and with the first end token: what comes after it is no output."""
    for index, token in enumerate(ids):
        if token in ends:
            return list(ids[: index + 1])
    return list(ids)
