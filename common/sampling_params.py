"""How a request wants its tokens chosen: the values and what is allowed for them.

No torch here, so that the gateway can check a request before any worker sees it; what
the values do to logits is `common.model.sampling`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import InvalidArgument

MAX_SEED = 2**64 - 1

# Every row of every step pays for each of them.
MAX_LOGIT_BIASES = 1024


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling of one request; the defaults are greedy decoding.

    All rows of a request share one object.
    """

    temperature: float = 0.0
    """0 picks the likeliest token, lowest id on a tie; above 0 samples."""

    top_k: int = 0
    """Keep the k likeliest tokens and those tied with the last of them; 0 keeps all."""

    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens with at least this probability, in (0, 1]."""

    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the likeliest, in [0, 1]."""

    repetition_penalty: float = 1.0
    """Above 1 discourages tokens of the prompt and the output so far; above 0."""

    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids, at most 1024, before anything else."""

    seed: int = 0
    """Key of the sampling noise, 64 bits: one seed, one text."""

    @property
    def greedy(self) -> bool:
        """Whether no noise is involved."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether ids that occur already are less likely, or more: it takes knowing which do."""
        return self.repetition_penalty != 1

    @property
    def adjusts(self) -> bool:
        """Whether logits change before temperature: the only changes greedy decoding sees."""
        # Written out: every row of every pass asks, and by `penalises` it takes a third longer.
        return bool(self.logit_bias) or self.repetition_penalty != 1

    def validate(self, vocab_size: int) -> None:
        """Checks every field.

        Args:
            vocab_size: Number of token ids of the model.

        Raises:
            InvalidArgument: A field is outside what is allowed; says which, and what is.
        """
        checks = (
            ("temperature", 0 <= self.temperature < math.inf, "must be finite and at least 0"),
            ("top_k", self.top_k >= 0, "must be at least 0"),
            ("top_p", 0 < self.top_p <= 1, "must be in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "must be in [0, 1]"),
            (
                "repetition_penalty",
                0 < self.repetition_penalty < math.inf,
                "must be finite, above 0",
            ),
            ("seed", 0 <= self.seed <= MAX_SEED, "must be in [0, 2^64 - 1]"),
        )
        for name, allowed, rule in checks:
            if not allowed:
                raise InvalidArgument(f"sampling.{name}", f"{rule}, got {getattr(self, name)}")
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            problem = f"must have at most {MAX_LOGIT_BIASES} entries, got {len(self.logit_bias)}"
            raise InvalidArgument("sampling.logit_bias", problem)
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                problem = f"token ids must be in [0, {vocab_size - 1}], got {token}"
                raise InvalidArgument("sampling.logit_bias", problem)
            if not math.isfinite(bias):
                problem = f"biases must be finite, got {bias} for token {token}"
                raise InvalidArgument("sampling.logit_bias", problem)
