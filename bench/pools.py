"""`python -m bench.pools`: what shared n-gram pools cost a token, and what the store sustains.

One thread does what an engine does between two passes of the target: it proposes, learns, and
shares n-grams at a set rate. The passes themselves are slept through, which lets the thread that
writes to the store run beside them, as a pass does. The embedded store serves.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from redis import Redis

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.tree import TokenTree
from common.store.pool_config import PoolConfig
from common.store.pools import MemoryPools, NgramPools, RedisPools
from launcher import store
from verifier.acceptance.coupled import walk
from verifier.cost import StepCost
from verifier.methods.base import Outcome
from verifier.methods.lookahead import LookaheadProposer
from verifier.pool.config import LookaheadConfig
from verifier.sequence import Request, Sequence

PASS_S = 0.003
VOCAB = 4096
COST = StepCost(((1, 3.2e-3), (8, 4.3e-3), (64, 14e-3)))


@dataclass
class Times:
    """Seconds on the engine's thread."""

    propose: list[float] = field(default_factory=list)
    observe: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    """Handing over the n-grams of one step, all sequences together."""

    @staticmethod
    def line(seconds: list[float]) -> str:
        """Median and 99th percentile, in microseconds; nothing of too few."""
        if len(seconds) < 2:
            return ""
        ninety_ninth = statistics.quantiles(seconds, n=100)[98]
        return f"{1e6 * statistics.median(seconds):7.0f} {1e6 * ninety_ninth:7.0f}"


def main(argv: Ids[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.pools", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rate", type=int, default=10_000, help="n-grams shared a second")
    arguments = parser.parse_args(argv)
    sizes = PoolConfig(max_bytes=512 << 10)
    print(f"{'us, median and p99':24}{'propose':>16}{'observe':>16}{'share':>16}")
    report("no shared pool", run(None, 0, arguments.seconds))
    report("in this process", run(MemoryPools(sizes), arguments.rate, arguments.seconds))
    with serving() as url:
        for rate in (0, arguments.rate):
            pools = RedisPools(url, "bench", sizes)
            started = time.monotonic()
            report(f"store, {rate} a second", run(pools, rate, arguments.seconds))
            seconds = time.monotonic() - started
            pools.close()
            counts = pools.counts
            print(f"  written {counts.written / seconds:.0f} a second, dropped {counts.dropped}")
        describe(url, sizes)


def report(name: str, times: Times) -> None:
    """Prints one measurement."""
    columns = (times.propose, times.observe, times.share)
    print(f"{name:24}" + "".join(f"{Times.line(c):>16}" for c in columns))


def describe(url: str, sizes: PoolConfig) -> None:
    """Prints what the store took."""
    with Redis.from_url(url) as client:
        info = client.info()
        used = sum(client.memory_usage(key) or 0 for key in client.scan_iter("paceline:*"))
    print(
        f"  pools take {used / 1024:.0f} of {sizes.max_bytes / 1024:.0f} KiB, the store "
        f"{info['used_memory'] / 1024:.0f} KiB and {info['used_cpu_user']:.1f} s of CPU"
    )


@contextmanager
def serving() -> Iterator[str]:
    """An embedded store; yields its URL."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = subprocess.Popen(store.command(folder), stdout=subprocess.DEVNULL)
        try:
            while not store.answers(folder):
                time.sleep(0.01)
            yield store.url(folder)
        finally:
            process.terminate()
            process.wait()


def run(pools: NgramPools | None, rate: int, seconds: float) -> Times:
    """Decodes one text after another, sharing n-grams of others at a rate."""
    draw, times = random.Random(0), Times()
    proposer = LookaheadProposer(LookaheadConfig(), COST, shared=pools)
    others = pools.of("") if pools is not None and rate else None
    end = time.monotonic() + seconds
    shared = 0.0
    while time.monotonic() < end:
        text = words(draw, 400)
        one = sequence(text[:40], 300)
        proposer.open(one)
        while one.finished is None and time.monotonic() < end:
            began = time.monotonic()
            step(proposer, one, text, times)
            if others is not None:
                shared += (time.monotonic() - began) * rate
                ngrams = [tuple(words(draw, 4)) for _ in range(int(shared))]
                shared -= len(ngrams)
                started = time.perf_counter()
                others.add(ngrams)
                times.share.append(time.perf_counter() - started)
                shared += (time.perf_counter() - started) * rate
        proposer.close(one)
    return times


def step(proposer: LookaheadProposer, one: Sequence, text: list[int], times: Times) -> None:
    """One round, the pass slept through."""
    tree = TokenTree(one.ids[-1])
    started = time.perf_counter()
    proposer.propose(one, tree, 64)
    times.propose.append(time.perf_counter() - started)
    time.sleep(PASS_S)
    length = len(one.ids)
    choices = [text[length + depth] if length + depth < len(text) else 0 for depth in tree.depths]
    accepted, last = walk(tree, choices)
    taken = one.commit([*(tree.ids[node] for node in accepted), last])
    outcome = Outcome(
        tree=tree,
        choices=choices,
        accepted=accepted[:taken],
        ids=one.ids[-taken:],
        state=torch.empty(0),
    )
    started = time.perf_counter()
    proposer.observe(one, outcome)
    times.observe.append(time.perf_counter() - started)


def sequence(prompt: list[int], tokens: int) -> Sequence:
    """A sequence without an engine."""
    request = Request(request_id="bench", prompt_ids=tuple(prompt), max_tokens=tokens)
    return Sequence(request, lambda event: None, KvLease(BlockManager(1, 16)), 1)


def words(draw: random.Random, count: int) -> list[int]:
    """Tokens with the frequencies of text: few common ones, many rare ones."""
    return [int(draw.paretovariate(0.6)) % VOCAB for _ in range(count)]


if __name__ == "__main__":
    main()
