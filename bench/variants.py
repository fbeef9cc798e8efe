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

LEAST_S = 2.0
"""Seconds that a concurrent pass lasts, at least: an engine finds out what pays under a load by
trying, which is to count for what it is worth to a service that goes on."""


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


class ConcurrentVariant:
    """Through all services, several prompts at a time, each worker taking the next.

    The prompts are repeated until the pass has lasted for a while. The clock runs from the first
    token of all, so prefill counts, to where a worker finds nothing left to do: from then on fewer
    would run than are to.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        concurrency: Prompts at a time.
        temperature: 0 decodes greedily.
        least_s: Seconds from the start of a pass in which workers go on taking prompts.
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
        arrivals: list[tuple[float, int]] = []
        idle: list[float] = []
        runs: dict[int, Timed] = {}
        until = time.perf_counter() + self._least_s
        turns = itertools.count()

        def note(chunk: Chunk) -> None:
            if chunk.token_ids:
                arrivals.append((time.perf_counter(), len(chunk.token_ids)))

        def work() -> None:
            while (turn := next(turns)) < len(prompts) or time.perf_counter() < until:
                seed = turn % len(prompts)
                generation = self._client.generate(
                    token_ids=prompts[seed],
                    method=self._method,
                    max_tokens=max_tokens,
                    temperature=self._temperature,
                    seed=seed,
                )
                runs[turn] = timed(generation, note)
            idle.append(time.perf_counter())

        with ThreadPoolExecutor(self._concurrency) as pool:
            for worker in [pool.submit(work) for _ in range(self._concurrency)]:
                worker.result()
        began, ended = min(arrivals)[0], min(idle)
        return Pass(
            samples=tuple(sample(runs[turn]) for turn in range(len(prompts))),
            tokens=sum(count for at, count in arrivals if began < at <= ended),
            seconds=ended - began,
        )


def sample(run: Timed) -> Sample:
    """Return what the bench keeps of a generation."""
    return Sample(
        ids=run.result.token_ids,
        tokens=run.decoded_tokens,
        seconds=run.seconds,
        speculation=run.result.speculation,
    )
