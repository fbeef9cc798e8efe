"""Several prompts at a time, by somebody who writes one when asked: each worker takes the next."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from bench.measurement import Pass, Sample

LEAST_S = 2.0
"""Seconds that a concurrent pass lasts, at least: an engine finds out what pays under a load by
trying, which is to count for what it is worth to a service that goes on."""

Note = Callable[[float, int], None]
"""Told when how many tokens came, by `time.perf_counter`."""


def crowd(
    write: Callable[[int, Note], Sample], prompts: int, at_once: int, least_s: float = LEAST_S
) -> Pass:
    """Have every prompt written at least once.

    The prompts are repeated until the pass has lasted for a while. The clock runs from the first
    token of all, so that what comes before a text's first token counts from then on, which is
    prefill as far as the prompt is in no cache. It ends where a worker finds nothing left to do:
    from then on fewer would run than are to.

    Args:
        write: Has the prompt of an index written, and notes its tokens.
        prompts: How many there are.
        at_once: Workers.
        least_s: Seconds from the start of a pass in which workers go on taking prompts.
    """
    arrivals: list[tuple[float, int]] = []
    idle: list[float] = []
    samples: dict[int, Sample] = {}
    until = time.perf_counter() + least_s
    turns = itertools.count()
    over = threading.Event()

    def note(at_s: float, tokens: int) -> None:
        arrivals.append((at_s, tokens))

    def work() -> None:
        while not over.is_set() and (
            (turn := next(turns)) < prompts or time.perf_counter() < until
        ):
            samples[turn] = write(turn % prompts, note)
        idle.append(time.perf_counter())

    with ThreadPoolExecutor(at_once) as pool:
        workers = [pool.submit(work) for _ in range(at_once)]
        try:
            wait(workers, return_when=FIRST_EXCEPTION)
        finally:  # where one fails, or somebody ends this, no worker begins another text
            over.set()
    for worker in workers:
        worker.result()
    began, ended = min(arrivals)[0], min(idle)
    return Pass(
        samples=tuple(samples[turn] for turn in range(prompts)),
        tokens=sum(count for at_s, count in arrivals if began < at_s <= ended),
        seconds=ended - began,
    )
