"""One run of the bench: start everything, measure in turns, sum up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
from paceline import Client

from bench import prompts as bundled
from bench.contender import Contender
from bench.report import Report, ratio, row
from bench.variants import (
    ConcurrentVariant,
    ContenderVariant,
    GatewayVariant,
    Measurement,
    Variant,
)
from launcher.cluster import Cluster, Watcher
from launcher.commandline import WorkerOptions, default_threads

CONCURRENCY = 8
TRANSFORMERS = "transformers"
ENGINE = "engine, in process"
PLAIN = "plain"
DRAFT = "draft"
PLAIN_MANY = f"plain, {CONCURRENCY} at once"
DRAFT_MANY = f"draft, {CONCURRENCY} at once"

# Name, what is divided by what, and the least the product promises.
RATIOS = (
    ("draft / plain", DRAFT, PLAIN, 1.5),
    ("plain / engine in process", PLAIN, ENGINE, 0.9),
    ("plain / transformers", PLAIN, TRANSFORMERS, 1.0),
    ("draft / transformers", DRAFT, TRANSFORMERS, 1.0),
    (f"plain: {CONCURRENCY} / 1", PLAIN_MANY, PLAIN, 3.0),
    (f"draft: {CONCURRENCY} / 1", DRAFT_MANY, DRAFT, 1.0),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    target: Path
    draft: Path
    dtype: str
    threads: int
    """CPU threads of each model's process; 0 shares the cores."""

    repetitions: int
    max_tokens: int
    """Most tokens for each prompt."""


def run(settings: Settings, watch: Watcher, progress: Callable[[str, int, int], None]) -> Report:
    """Run the bench.

    Args:
        settings: What to run.
        watch: Told how the services come up.
        progress: Told what is next, how many passes are done, and how many there will be.
    """
    threads = settings.threads or default_threads()
    options = WorkerOptions(dtype=settings.dtype, device="cpu", threads=threads)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(target=settings.target, draft=settings.draft, options=options, watch=watch)
        )
        client = stack.enter_context(Client(cluster.address))
        flags = (str(settings.target), settings.dtype, threads)
        reference = stack.enter_context(Contender("transformers", *flags))
        engine = stack.enter_context(Contender("engine", *flags))
        variants: list[Variant] = [
            ContenderVariant(TRANSFORMERS, reference),
            ContenderVariant(ENGINE, engine),
            GatewayVariant(PLAIN, client, "plain"),
            GatewayVariant(DRAFT, client, "draft"),
            ConcurrentVariant(PLAIN_MANY, client, "plain", CONCURRENCY),
            ConcurrentVariant(DRAFT_MANY, client, "draft", CONCURRENCY),
        ]
        ids = bundled.encode(bundled.load(), client)
        passes = measure(variants, ids, settings, progress)
        memory_bytes = resident_bytes(cluster)
    return Report(
        settings=described(settings, threads),
        prompts=len(ids),
        rows=[row(name, done, passes[PLAIN][0]) for name, done in passes.items()],
        ratios=[ratio(name, passes, over, under, least) for name, over, under, least in RATIOS],
        gateway_rss_bytes=memory_bytes,
    )


def measure(
    variants: Sequence[Variant],
    ids: Sequence[Sequence[int]],
    settings: Settings,
    progress: Callable[[str, int, int], None],
) -> dict[str, list[Measurement]]:
    """Let every variant decode every prompt, in turns, after a warm-up that does not count.

    The order turns round at every repetition, so that none always follows the same one.
    """
    passes: dict[str, list[Measurement]] = {variant.name: [] for variant in variants}
    total = len(variants) * (settings.repetitions + 1)
    done = 0
    for variant in variants:
        progress(f"warm-up: {variant.name}", done, total)
        variant.measure(ids[:1], settings.max_tokens)
        done += 1
    for repetition in range(settings.repetitions):
        for variant in variants if repetition % 2 == 0 else reversed(variants):
            progress(f"{repetition + 1}/{settings.repetitions}: {variant.name}", done, total)
            passes[variant.name].append(variant.measure(ids, settings.max_tokens))
            done += 1
    return passes


def resident_bytes(cluster: Cluster) -> int:
    """Return the gateway's memory after all that work."""
    gateway = cluster.services[-1].process
    assert gateway
    return int(psutil.Process(gateway.pid).memory_info().rss)


def described(settings: Settings, threads: int) -> dict[str, str | int]:
    """Return what somebody needs to repeat the run."""
    return {
        "target": settings.target.name,
        "draft": settings.draft.name,
        "dtype": settings.dtype,
        "threads": threads,
        "cores": os.cpu_count() or 0,
        "repetitions": settings.repetitions,
        "max_tokens": settings.max_tokens,
        "temperature": 0,
    }
