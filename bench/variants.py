"""What is measured: one way to decode the prompts, one at a time or several at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from paceline import Chunk, Client

from bench.contender import Contender
from bench.measurement import Pass, Sample
from launcher.timing import Timed, timed

ROUNDS = 3
"""Prompts each worker of a concurrent pass decodes, at least."""


class Variant(Protocol):
    """A way to decode."""

    name: str

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt greedily."""


class ContenderVariant:
    """A contender in its own process, one prompt at a time."""

    def __init__(self, name: str, contender: Contender) -> None:
        self.name = name
        self._contender = contender

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt greedily."""
        return Pass.of([self._contender.generate(prompt, max_tokens) for prompt in prompts])


class GatewayVariant:
    """Through all services, one prompt at a time.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        draft_tokens: Length of every draft; 0 leaves it to the verifier.
    """

    def __init__(self, name: str, client: Client, method: str, draft_tokens: int = 0) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._draft_tokens = draft_tokens

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt greedily."""
        return Pass.of([sample(self._run(prompt, max_tokens)) for prompt in prompts])

    def _run(self, prompt: Sequence[int], max_tokens: int) -> Timed:
        generation = self._client.generate(
            token_ids=prompt,
            method=self._method,
            max_tokens=max_tokens,
            draft_tokens=self._draft_tokens,
        )
        return timed(generation)


class ConcurrentVariant:
    """Through all services, several prompts at a time, each worker taking the next.

    The prompts are repeated until every worker has a few. The clock runs from the first token of
    all to the last of all, so prefill counts, and the thin end of a pass, where fewer are left
    than could run, counts against it.
    """

    def __init__(self, name: str, client: Client, method: str, concurrency: int) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._concurrency = concurrency

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt greedily, at least once."""
        arrivals: list[tuple[float, int]] = []

        def note(chunk: Chunk) -> None:
            if chunk.token_ids:
                arrivals.append((time.perf_counter(), len(chunk.token_ids)))

        def run(prompt: Sequence[int]) -> Timed:
            generation = self._client.generate(
                token_ids=prompt, method=self._method, max_tokens=max_tokens
            )
            return timed(generation, note)

        enough = max(len(prompts), ROUNDS * self._concurrency)
        with ThreadPoolExecutor(self._concurrency) as pool:
            runs = list(pool.map(run, itertools.islice(itertools.cycle(prompts), enough)))
        arrivals.sort()
        return Pass(
            samples=tuple(sample(done) for done in runs[: len(prompts)]),
            tokens=sum(count for _, count in arrivals) - arrivals[0][1],
            seconds=arrivals[-1][0] - arrivals[0][0],
        )


def sample(run: Timed) -> Sample:
    """Return what the bench keeps of a generation."""
    return Sample(
        ids=run.result.token_ids,
        tokens=run.decoded_tokens,
        seconds=run.seconds,
        speculation=run.result.speculation,
    )
