"""How fast one generation decodes, measured where it matters: at the client.

From the first token to the last, so that neither prefill nor connection set-up counts. Rates of
several generations are total tokens over total time, never means of rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline import Chunk, Generation, Result


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One generation and its decode time."""

    result: Result
    decoded_tokens: int
    """Tokens after the first message, which is where the clock starts."""

    seconds: float
    """From the first message to the last."""


def timed(generation: Generation, on_chunk: Callable[[Chunk], None] | None = None) -> Timed:
    """Run a generation to its end.

    Args:
        generation: One that has not been iterated.
        on_chunk: Called with each chunk, inside the measured time.
    """
    first_s = last_s = 0.0
    first_tokens = tokens = 0
    for chunk in generation:
        if chunk.token_ids:
            last_s = time.perf_counter()
            first_s = first_s or last_s
            first_tokens = first_tokens or len(chunk.token_ids)
            tokens += len(chunk.token_ids)
        if on_chunk:
            on_chunk(chunk)
    return Timed(
        result=generation.result(),
        decoded_tokens=tokens - first_tokens,
        seconds=last_s - first_s,
    )


def rate(runs: Iterable[Timed]) -> float:
    """Return tokens a second over all runs together; 0 where nothing was decoded."""
    runs = list(runs)
    seconds = sum(run.seconds for run in runs)
    return sum(run.decoded_tokens for run in runs) / seconds if seconds else 0.0
