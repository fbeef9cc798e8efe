"""What is measured: one way to decode the prompts, one at a time or several at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from paceline import Chunk, Client, Speculation

from bench.contender import Contender
from launcher.timing import Timed, timed


@dataclass(kw_only=True)
class Measurement:
    """One pass over the prompts."""

    tokens: int = 0
    """Tokens decoded, those that started the clock left out."""

    seconds: float = 0.0
    """Decode time."""

    outputs: list[tuple[int, ...]] = field(default_factory=list)
    """The ids of each prompt."""

    speculation: list[Speculation] = field(default_factory=list)
    """What speculation did for each prompt, where the variant knows."""

    @property
    def tokens_per_s(self) -> float:
        """Total tokens over total time."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Variant(Protocol):
    """A way to decode."""

    name: str

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Measurement:
        """Decode every prompt greedily."""


class ContenderVariant:
    """A contender in its own process, one prompt at a time."""

    def __init__(self, name: str, contender: Contender) -> None:
        self.name = name
        self._contender = contender

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Measurement:
        """Decode every prompt greedily."""
        measurement = Measurement()
        for prompt in prompts:
            ids, seconds = self._contender.generate(prompt, max_tokens)
            measurement.outputs.append(tuple(ids))
            measurement.tokens += len(ids) - 1
            measurement.seconds += seconds
        return measurement


class GatewayVariant:
    """Through all services, one prompt at a time."""

    def __init__(self, name: str, client: Client, method: str) -> None:
        self.name = name
        self._client = client
        self._method = method

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Measurement:
        """Decode every prompt greedily."""
        measurement = Measurement()
        for prompt in prompts:
            generation = self._client.generate(
                token_ids=prompt, method=self._method, max_tokens=max_tokens
            )
            run = timed(generation)
            measurement.tokens += run.decoded_tokens
            measurement.seconds += run.seconds
            add(measurement, run)
        return measurement


class ConcurrentVariant:
    """Through all services, several prompts at a time, each worker taking the next.

    The clock runs from the first token of all to the last of all, so the thin end of a pass, where
    fewer are left than could run, counts against it.
    """

    def __init__(self, name: str, client: Client, method: str, concurrency: int) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._concurrency = concurrency

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Measurement:
        """Decode every prompt greedily, twice, so that all workers are busy most of the time."""
        arrivals: list[tuple[float, int]] = []

        def note(chunk: Chunk) -> None:
            arrivals.append((time.perf_counter(), len(chunk.token_ids)))

        def run(prompt: Sequence[int]) -> Timed:
            generation = self._client.generate(
                token_ids=prompt, method=self._method, max_tokens=max_tokens
            )
            return timed(generation, note)

        with ThreadPoolExecutor(self._concurrency) as pool:
            runs = list(pool.map(run, [*prompts, *prompts]))
        arrivals.sort()
        measurement = Measurement(
            tokens=sum(count for _, count in arrivals) - arrivals[0][1],
            seconds=arrivals[-1][0] - arrivals[0][0],
        )
        for done in runs[: len(prompts)]:
            add(measurement, done)
        return measurement


def add(measurement: Measurement, run: Timed) -> None:
    """Note a generation's ids and speculation."""
    measurement.outputs.append(run.result.token_ids)
    measurement.speculation.append(run.result.speculation)
