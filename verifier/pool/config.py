"""Configuration of lookahead decoding."""

from __future__ import annotations

from dataclasses import dataclass

from common.config_checks import at_least
from common.errors import ConfigError
from common.lookahead_sizes import LEAST_NGRAM, MOST_NGRAM


@dataclass(frozen=True, kw_only=True)
class LookaheadConfig:
    """Sizes of lookahead decoding."""

    window_columns: int = 0
    """Columns of the window, the paper's W; 0 chooses by the target's size and what rows cost."""
    ngram_tokens: int = 0
    """Tokens of an n-gram of the window, the paper's N, from 2 to 8; 0 chooses in the same way."""
    guess_ngrams: int = 0
    """N-grams guessed in a step, the paper's G: N - 1 nodes each before they share any; 0 chooses
    in the same way."""
    seed_from_prompt: bool = True
    """Guess from the prompt's n-grams as well as from the output's."""

    def __post_init__(self) -> None:
        at_least(self, "lookahead.", window_columns=0, ngram_tokens=0, guess_ngrams=0)
        if self.ngram_tokens and not LEAST_NGRAM <= self.ngram_tokens <= MOST_NGRAM:
            allowed = f"must be 0, or {LEAST_NGRAM} to {MOST_NGRAM}, got {self.ngram_tokens}"
            raise ConfigError(f"lookahead.ngram_tokens: {allowed}")
