"""Sizes of lookahead decoding as a request may give them: the values and what is allowed.

No torch here, so that the gateway can check a request before any worker sees it; how sizes are
chosen that are left open is `verifier.pool.sizes`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import InvalidArgument

MOST_WINDOW = 64
LEAST_NGRAM = 2
MOST_NGRAM = 8
MOST_GUESSES = 64


@dataclass(frozen=True, kw_only=True)
class LookaheadSizes:
    """W, N and G of one request; 0 leaves one to the verifier."""

    window: int = 0
    """W, columns of the Jacobi window; at most 64."""
    ngram: int = 0
    """N, tokens of an n-gram; from 2 to 8."""
    guesses: int = 0
    """G, n-grams guessed in a round; at most 64."""

    def validate(self) -> None:
        """Checks every field.

        Raises:
            InvalidArgument: A field is outside what is allowed; says which, and what is.
        """
        ranges = (
            ("window", 1, MOST_WINDOW),
            ("ngram", LEAST_NGRAM, MOST_NGRAM),
            ("guesses", 1, MOST_GUESSES),
        )
        for name, least, most in ranges:
            value = getattr(self, name)
            if value and not least <= value <= most:
                problem = f"must be 0, or {least} to {most}, got {value}"
                raise InvalidArgument(f"speculation.lookahead.{name}", problem)
