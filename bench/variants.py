"""What is measured: one way to decode the prompts, one at a time or several at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from paceline import Chunk, Client

from bench.contender import Contender
from bench.crowd import LEAST_S, Note, crowd
from bench.measurement import Pass, Sample
from launcher.timing import Timed, timed


class Variant(Protocol):
    """A way to decode."""

    name: str

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt."""


class ContenderVariant:
    """A contender in its own process, one prompt at a time."""

    def __init__(self, name: str, contender: Contender) -> None:
        self.name = name
        self._contender = contender

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt, the first with a seed of 0, the next with 1."""
        contender = self._contender
        return Pass.of(
            [contender.generate(prompt, max_tokens, seed) for seed, prompt in enumerate(prompts)]
        )


class GatewayVariant:
    """Through all services, one prompt at a time.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        draft_tokens: Length of every draft; 0 leaves it to the verifier.
        temperature: 0 decodes greedily.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        method: str,
        draft_tokens: int = 0,
        *,
        temperature: float = 0.0,
    ) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._draft_tokens = draft_tokens
        self._temperature = temperature

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt, the first with a seed of 0, the next with 1."""
        runs = (self._run(prompt, max_tokens, seed) for seed, prompt in enumerate(prompts))
        return Pass.of([sample(run) for run in runs])

    def _run(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Timed:
        generation = self._client.generate(
            token_ids=prompt,
            method=self._method,
            max_tokens=max_tokens,
            draft_tokens=self._draft_tokens,
            temperature=self._temperature,
            seed=seed,
        )
        return timed(generation)


class ContendersCrowd:
    """A contender in its own process, several prompts at a time.

    Args:
        name: What to call it.
        contender: One that takes as many.
        concurrency: Prompts at a time.
        least_s: See `bench.crowd`.
    """

    def __init__(
        self, name: str, contender: Contender, concurrency: int, *, least_s: float = LEAST_S
    ) -> None:
        self.name = name
        self._contender = contender
        self._concurrency = concurrency
        self._least_s = least_s

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt at least once, the first with a seed of 0, the next with 1."""
        return self._contender.crowd(prompts, max_tokens, self._concurrency, self._least_s)


class ConcurrentVariant:
    """Through all services, several prompts at a time, see `bench.crowd`.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        concurrency: Prompts at a time.
        temperature: 0 decodes greedily.
        least_s: See `bench.crowd`.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        method: str,
        concurrency: int,
        *,
        temperature: float = 0.0,
        least_s: float = LEAST_S,
    ) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._concurrency = concurrency
        self._temperature = temperature
        self._least_s = least_s

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt at least once, the first with a seed of 0, the next with 1."""

        def write(seed: int, note: Note) -> Sample:
            def told(chunk: Chunk) -> None:
                if chunk.token_ids:
                    note(time.perf_counter(), len(chunk.token_ids))

            generation = self._client.generate(
                token_ids=prompts[seed],
                method=self._method,
                max_tokens=max_tokens,
                temperature=self._temperature,
                seed=seed,
            )
            return sample(timed(generation, told))

        return crowd(write, len(prompts), self._concurrency, self._least_s)


def sample(run: Timed) -> Sample:
    """Return what the bench keeps of a generation."""
    return Sample(
        ids=run.result.token_ids,
        tokens=run.decoded_tokens,
        seconds=run.seconds,
        speculation=run.result.speculation,
    )
