"""What users wait for where requests come at random: each is sent when it is due, and timed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from paceline import AsyncClient, errors

from bench.progress import Progress
from common.errors import StartupError

TEMPERATURE = 0.7
LEAST_PART = 1 / 8
"""A request asks for this part of the most tokens at least."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request."""

    at_s: float
    """When it is due, from the start of a pass."""
    prompt: int
    """Which of the prompts."""
    tokens: int
    """How many it asks for."""
    seed: int
    """Of its text."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Of a request; seconds count from when it was due."""

    first_s: float
    """To its first token."""
    whole_s: float
    """To its last."""
    tokens: int
    """How many came."""

    @property
    def token_s(self) -> float:
        """For each token after the first."""
        return (self.whole_s - self.first_s) / max(self.tokens - 1, 1)


@dataclass
class Run:
    """All passes of one method at one rate."""

    waits: list[Wait] = field(default_factory=list)
    """Of the requests that were answered."""
    refused: int = 0
    """How many were not: too many were waiting."""
    span_s: float = 0.0
    """How long the passes took, all together."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Milliseconds that half, 90 % and 99 % of the requests waited at most."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of these waits."""
        p50, p90, p99 = (1e3 * np.percentile(seconds, [50, 90, 99])).tolist()
        return cls(p50=p50, p90=p90, p99=p99)

    def text(self) -> str:
        """For people."""
        numbers = (self.p50, self.p90, self.p99)
        return "".join(f"{number:7.{1 if number < 100 else 0}f}" for number in numbers)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method at one rate, over all passes."""

    rate: float
    """Requests a second that arrived, in the mean."""
    method: str
    """Which."""
    requests: int
    """How many were answered."""
    refused: int
    """How many were not: too many were waiting."""
    tokens_per_s: float
    """From the start of a pass to its last token."""
    at_once: float
    """Requests that waited at a time, in the mean."""
    first: Spread
    """To the first token."""
    token: Spread
    """For each further one, in the mean of a request."""
    whole: Spread
    """To the last token."""

    def text(self) -> str:
        """For people, below `HEADER`."""
        return (
            f"{self.rate:6g}  {self.method:12s}  {self.requests:8d}  {self.refused:7d}"
            f"  {self.tokens_per_s:8.0f}  {self.at_once:7.1f}"
            f"{self.first.text()}{self.token.text()}{self.whole.text()}"
        )


def arrivals(rate: float, seconds: float, count: int, max_tokens: int, seed: int) -> list[Arrival]:
    """Requests of a pass, the same ones for the same seed; one at least.

    Args:
        rate: Of their arrival, a second.
        seconds: In which they arrive.
        count: Of prompts that they choose from.
        max_tokens: Most that one asks for.
        seed: Of all chance in them.
    """
    source = random.Random(seed)
    found, at_s = list[Arrival](), 0.0
    while not found or at_s < seconds:
        found.append(
            Arrival(
                at_s=at_s,
                prompt=source.randrange(count),
                tokens=source.randint(math.ceil(LEAST_PART * max_tokens), max_tokens),
                seed=source.getrandbits(53),
            )
        )
        at_s += source.expovariate(rate)
    return found


async def measure(
    address: str,
    texts: Sequence[Sequence[int]],
    unseen: Callable[[Sequence[int]], list[int]],
    every: Mapping[float, Sequence[Sequence[Arrival]]],
    methods: Sequence[str],
    check: Callable[[], None],
    progress: Progress,
    tell: Callable[[Line], None],
) -> None:
    """Send all requests by every method.

    Args:
        address: Of a gateway that nobody else uses.
        texts: Ids of the prompts.
        unseen: Makes a prompt one that no cache has.
        every: Arrivals of each pass, by their rate.
        methods: In turns; the order turns round from pass to pass.
        check: Called behind each pass; raises where what it measured does not count.
        progress: Told before each pass.
        tell: Given what each method came to, once all passes of a rate are done.
    """
    total, done = sum(map(len, every.values())) * len(methods), 0
    async with AsyncClient(address) as client:
        for method in methods:  # pays for what is set up once
            await client.generate(token_ids=texts[0], max_tokens=16, method=method).result()
        for rate, repetitions in every.items():
            runs = {method: Run() for method in methods}
            for index, arrived in enumerate(repetitions):
                for method in methods if index % 2 == 0 else reversed(methods):
                    progress(f"{method} at {rate:g}/s", done, total)
                    asked = [(each, unseen(texts[each.prompt])) for each in arrived]
                    await _play(client, asked, method, runs[method])
                    check()
                    done += 1
            for method, run in runs.items():
                tell(summed(rate, method, run))


async def _play(
    client: AsyncClient, asked: Sequence[tuple[Arrival, list[int]]], method: str, run: Run
) -> None:
    """One pass: requests, each with its prompt, are sent when they are due."""
    began = time.perf_counter()
    waits = await asyncio.gather(
        *(_wait(client, arrival, ids, began, method) for arrival, ids in asked)
    )
    answered = [wait for wait in waits if wait is not None]
    run.waits += answered
    run.refused += len(waits) - len(answered)
    run.span_s += time.perf_counter() - began


async def _wait(
    client: AsyncClient, arrival: Arrival, ids: Sequence[int], began: float, method: str
) -> Wait | None:
    """One request; None where it is refused."""
    await asyncio.sleep(began + arrival.at_s - time.perf_counter())
    generation = client.generate(
        token_ids=ids,
        max_tokens=arrival.tokens,
        method=method,
        temperature=TEMPERATURE,
        seed=arrival.seed,
        ignore_eos=True,
    )
    first_s, last_s, tokens = 0.0, 0.0, 0
    try:
        async for chunk in generation:
            if chunk.token_ids:
                last_s = time.perf_counter() - began - arrival.at_s
                first_s, tokens = first_s or last_s, tokens + len(chunk.token_ids)
    except errors.ResourceExhaustedError:
        return None
    return Wait(first_s=first_s, whole_s=last_s, tokens=tokens)


def summed(rate: float, method: str, run: Run) -> Line:
    """What a method came to at a rate.

    Args:
        rate: Requests a second.
        method: Which.
        run: Its passes.

    Raises:
        StartupError: No request was answered.
    """
    if not run.waits:
        raise StartupError(f"{method} at {rate:g}/s: all of {run.refused} requests were refused")
    return Line(
        rate=rate,
        method=method,
        requests=len(run.waits),
        refused=run.refused,
        tokens_per_s=sum(wait.tokens for wait in run.waits) / run.span_s,
        at_once=sum(wait.whole_s for wait in run.waits) / run.span_s,
        first=Spread.of([wait.first_s for wait in run.waits]),
        token=Spread.of([wait.token_s for wait in run.waits]),
        whole=Spread.of([wait.whole_s for wait in run.waits]),
    )
