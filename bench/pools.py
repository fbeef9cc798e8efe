"""`python -m bench.pools`: what shared n-gram pools cost a token, and what the store sustains.

One thread does what an engine does: it proposes, computes a pass and learns, and hands over text of
other sequences at a set rate. A pass is multiplied through, so that it takes a processor as the
target does, or slept through as where a device computes. Every way to share takes its turn, a
second or so at a time, so that whatever else the machine does meets all of them alike. The embedded
store serves.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch
from redis import Redis

from bench.arguments import at_least, some_seconds
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.output import Computed
from common.model.tree import TokenTree
from common.store.pool_config import PoolConfig
from common.store.pool_worker import PoolCounts
from common.store.pools import MemoryPools, NgramPools, RedisPools, TenantPool
from launcher import store
from verifier.acceptance.coupled import walk
from verifier.cost import StepCost
from verifier.methods.lookahead import LookaheadProposer
from verifier.pool.config import LookaheadConfig
from verifier.proposer import Outcome
from verifier.sequence import Request, Sequence

PASS_S = 0.003
ROUND_TOKENS = 3
"""Of each of the other sequences, in a step."""
VOCAB = 4096
COST = StepCost(((1, 3.2e-3), (8, 4.3e-3), (64, 14e-3)))


@dataclass
class Times:
    """Seconds on the engine's thread."""

    propose: list[float] = field(default_factory=list)
    observe: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    """Handing over other sequences' text of one step."""
    step: list[float] = field(default_factory=list)
    """All of that and the pass: what a token waits for."""

    @staticmethod
    def line(seconds: list[float]) -> str:
        """Median and 99th percentile, in microseconds; nothing of too few."""
        if len(seconds) < 2:
            return ""
        ninety_ninth = statistics.quantiles(seconds, n=100)[98]
        return f"{1e6 * statistics.median(seconds):7.0f} {1e6 * ninety_ninth:7.0f}"


@dataclass(kw_only=True)
class Way:
    """One way to share."""

    name: str
    """In the report."""
    pools: NgramPools | None
    """Shared with."""
    rate: int
    """N-grams of other sequences, a second."""
    times: Times = field(default_factory=Times)
    """What it took."""
    shared: int = 0
    """N-grams of other sequences handed over."""


def main(argv: Seq[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.pools", description=__doc__)
    parser.add_argument("--seconds", type=some_seconds, default=20.0, help="of each measurement")
    parser.add_argument(
        "--turn", type=some_seconds, default=1.0, help="seconds before the next one's turn"
    )
    parser.add_argument("--rate", type=at_least(1), default=10_000, help="n-grams shared a second")
    parser.add_argument("--sleep", action="store_true", help="sleep through the passes")
    given = parser.parse_args(argv)
    sizes = PoolConfig(max_bytes=512 << 10)
    compute = partial(time.sleep, PASS_S) if given.sleep else multiplied()
    with store.running() as url, closing(RedisPools(url, "bench", sizes)) as pools:
        ways = [
            Way(name="no shared pool", pools=None, rate=0),
            Way(name="in this process", pools=MemoryPools(sizes), rate=given.rate),
            Way(name="store, 0 a second", pools=pools, rate=0),
            Way(name=f"store, {given.rate} a second", pools=pools, rate=given.rate),
        ]
        most = 0
        for turn in range(max(round(given.seconds / given.turn), 1)):
            for way in ways:
                run(way, turn, given.turn, compute)
            most = max(most, taken(url))
        pools.close()
        report(ways)
        print(written(ways[-1], pools.counts))
        print(describe(url, max(most, taken(url)), sizes))


def written(way: Way, counts: PoolCounts) -> str:
    """Says what was shared in the time, and what became of it.

    Args:
        way: The one with other sequences' n-grams.
        counts: Of all that went to the store, the decoded texts' own n-grams too.
    """
    seconds = sum(way.times.step)
    return (
        f"  {way.shared / seconds:.0f} n-grams of other sequences a second for {seconds:.1f} s; "
        f"with the texts' own {counts.written} were written, {counts.dropped} dropped, "
        f"{counts.evicted} sets evicted"
    )


def report(ways: Seq[Way]) -> None:
    """Prints the measurements."""
    names = ("propose", "observe", "share", "step")
    print(f"{'us, median and p99':24}" + "".join(f"{name:>16}" for name in names))
    for way in ways:
        columns = (Times.line(getattr(way.times, name)) for name in names)
        print(f"{way.name:24}" + "".join(f"{column:>16}" for column in columns))


def multiplied() -> Callable[[], object]:
    """A pass that takes a processor for about `PASS_S`."""
    matrix = torch.eye(512)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < 50 * PASS_S:
        matrix @ matrix
        count += 1
    products = max(count // 50, 1)

    def compute() -> None:
        for _ in range(products):
            matrix @ matrix

    return compute


def taken(url: str) -> int:
    """Returns the bytes that pools take in the store."""
    with Redis.from_url(url) as client:
        return sum(client.memory_usage(key) or 0 for key in client.scan_iter("paceline:*"))


def describe(url: str, most: int, sizes: PoolConfig) -> str:
    """Says what the store took, and whether its pools kept within their budget.

    Args:
        url: Of the store.
        most: Bytes that pools took after any turn.
        sizes: What was allowed.
    """
    with Redis.from_url(url) as client:
        info = client.info()
    kept = "within" if most <= sizes.max_bytes else "over"
    most_kib, may_kib, all_kib = (n / 1024 for n in (most, sizes.max_bytes, info["used_memory"]))
    return (
        f"  pools took {most_kib:.0f} KiB at most, {kept} their {may_kib:.0f} KiB; the store takes "
        f"{all_kib:.0f} KiB and {info['used_cpu_user']:.1f} s of CPU"
    )


def run(way: Way, turn: int, seconds: float, compute: Callable[[], object]) -> None:
    """Decodes one text after another, and shares other sequences' at a rate."""
    draw, times = random.Random(f"{turn} {way.name}"), way.times  # no text comes twice
    proposer = LookaheadProposer(LookaheadConfig(), COST, shared=way.pools)
    others = way.pools.of("") if way.pools is not None and way.rate else None
    texts = [words(draw, 400) for _ in range(8)]
    foreign = words(draw, 1 << 16)
    began = time.perf_counter()
    end, shared = began + seconds, 0
    for text in itertools.cycle(texts):
        one = sequence(text[:40], 300)
        proposer.open(one)
        while one.finished is None and time.perf_counter() < end:
            started = time.perf_counter()
            step(proposer, one, text, times, compute)
            if others is not None:
                due = int((time.perf_counter() - began) * way.rate) - shared
                times.share.append(share(others, foreign, shared, due))
                shared += due
                way.shared += due
            times.step.append(time.perf_counter() - started)
        proposer.close(one)
        if time.perf_counter() >= end:
            return


def share(pool: TenantPool, text: list[int], done: int, due: int) -> float:
    """Hands n-grams over as a batch of sequences does, a few tokens of each; returns seconds."""
    length = PoolConfig().ngram_tokens - 1
    pieces = []
    for first in range(done, done + due, ROUND_TOKENS):
        begin = first % (len(text) - length - ROUND_TOKENS)
        pieces.append(text[begin : begin + length + min(ROUND_TOKENS, done + due - first)])
    started = time.perf_counter()
    for piece in pieces:
        pool.add(piece)
    return time.perf_counter() - started


def step(
    proposer: LookaheadProposer,
    one: Sequence,
    text: list[int],
    times: Times,
    compute: Callable[[], object],
) -> None:
    """One round."""
    tree = TokenTree(one.ids[-1])
    started = time.perf_counter()
    proposer.propose(one, tree, 64)
    times.propose.append(time.perf_counter() - started)
    compute()
    length = len(one.ids)
    choices = [text[length + depth] if length + depth < len(text) else 0 for depth in tree.depths]
    accepted, last = walk(tree, choices)
    taken = one.commit([*(tree.ids[node] for node in accepted), last])
    outcome = Outcome(
        tree=tree,
        choices=choices,
        accepted=accepted[:taken],
        ids=one.ids[-taken:],
        output=Computed(torch.empty(1, 0), torch.empty(1, 0)),
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
