"""`python -m bench.telemetry`: what metrics and traces cost.

Two deployments of the same models run side by side and are measured in turns: one tells nothing;
the other has its metrics scraped every second, traces requests and sends the spans to a receiver on
this machine. Scrapes stop while the first is measured.
"""

from __future__ import annotations

import argparse
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from paceline import Client

from bench import prompts
from bench.arguments import at_least, ending_well, within
from bench.confidence import Estimate, grid, rate, ratio, sure, whole
from bench.deployment import FORGETFUL, TELLING, as_started
from bench.in_turns import measure
from bench.measurement import Pass
from bench.otlp_sink import OtlpSink
from bench.ports import free_ports
from bench.settings import DRAFT, PLAIN, at_once
from bench.telemetry_parts import parts
from bench.variants import ConcurrentVariant, GatewayVariant, Variant
from common.telemetry.config import TracingConfig
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.drafting import await_draft
from launcher.models import choose

SCRAPE_S = 1.0
TIERS = ("GATEWAY", "VERIFIER", "DRAFTER")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One way to decode, with telemetry and without."""

    name: str
    on: Estimate
    """Tokens a second with telemetry."""
    off: Estimate
    """The same without."""
    quotient: Estimate
    """The first over the second, by repetitions in pairs."""

    def line(self) -> str:
        """For people."""
        high, low = ((1 - end) * 100 for end in self.quotient.within)
        between = "" if self.quotient.low is None else f" [{low:+.2f}, {high:+.2f}]"
        return (
            f"{self.name:<20} {self.off.value:8.1f} {self.on.value:8.1f} tokens/s   costs "
            f"{(1 - self.quotient.value) * 100:+.2f} %{between}"
        )


class Scraped:
    """A variant during which metrics are scraped.

    Args:
        inner: The variant.
        ports: Where.
    """

    def __init__(self, inner: Variant, ports: Sequence[int]) -> None:
        self.name = f"{inner.name}, told"
        self._inner, self._ports = inner, ports

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt greedily."""
        over = threading.Event()
        scraper = threading.Thread(target=self._scrape, args=(over,))
        scraper.start()
        try:
            return self._inner.measure(prompts, max_tokens)
        finally:
            over.set()
            scraper.join()

    def _scrape(self, over: threading.Event) -> None:
        while not over.is_set():
            self._read()
            over.wait(SCRAPE_S)

    def _read(self) -> None:
        for port in self._ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                page.read()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a line for each way to decode."""
    given = arguments(argv)
    if given.parts:
        for name, microseconds in parts():
            print(f"{name:<40} {microseconds:8.2f} us")
        return
    chosen = prompts.load(given.per_domain)
    with OtlpSink() as sink, deployments(sink, given) as (told, quiet, ports):
        silent = variants(quiet, given.concurrency)
        telling = [Scraped(each, ports) for each in variants(told, given.concurrency)]
        passes = measure(
            [each for pair in zip(silent, telling, strict=True) for each in pair],
            prompts.encode(chosen, told),
            repetitions=given.repetitions,
            max_tokens=given.max_tokens,
            progress=lambda what, done, total: print(f"[{done}/{total}] {what}", file=sys.stderr),
        )
        spans = len(sink.spans)
    print(f"{'':<20} {'off':>8} {'on':>8}")
    for pair in zip(silent, telling, strict=True):
        off, on = (passes.by_variant.get(each.name) for each in pair)
        if off and on:
            print(cost(pair[0], on, off).line())
    count = max(map(len, passes.by_variant.values()), default=0)
    intervals = f", {sure(count):.0f} % intervals" if count > 1 else ""
    print(f"{spans} spans; medians of {count} repetitions in turns{intervals}")
    for line in passes.left_out:
        print(f"left out: {line}")
    if passes.interrupted:
        raise KeyboardInterrupt


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    default = TracingConfig()
    parser.add_argument(
        "--repetitions", type=at_least(1), default=9, help="passes over the prompts"
    )
    parser.add_argument(
        "--max-tokens", type=at_least(2), default=64, help="most tokens of each text"
    )
    number = at_least(0)
    parser.add_argument("--per-domain", type=number, default=0, help="prompts of each; 0 takes all")
    parser.add_argument("--concurrency", type=number, default=8, help="prompts at once; 0 for none")
    parser.add_argument("--parts", action="store_true", help="only time its parts by themselves")
    parser.add_argument("--sample-ratio", type=within(0, 1), default=default.sample_ratio)
    parser.add_argument("--round-ratio", type=within(0, 1), default=default.round_ratio)
    return parser.parse_args(argv)


@contextmanager
def deployments(
    sink: OtlpSink, given: argparse.Namespace
) -> Iterator[tuple[Client, Client, list[int]]]:
    """Start both; yields a client of the one that tells, one of the other, and metrics ports."""
    ports = free_ports(len(TIERS))
    tracing = {
        "ENDPOINT": sink.endpoint,
        "SAMPLE_RATIO": str(given.sample_ratio),
        "ROUND_RATIO": str(given.round_ratio),
    }
    telling = {
        f"PACELINE_{tier}_METRICS_PORT": str(port) for tier, port in zip(TIERS, ports, strict=True)
    }
    for tier in ("GATEWAY", "VERIFIER"):
        telling |= {f"PACELINE_{tier}_TRACING__{key}": value for key, value in tracing.items()}
    with ExitStack() as stack:
        clients, options = [], WorkerOptions()
        for environment in (telling, {}):
            cluster = Cluster(
                models=choose(),
                options=options,
                with_store=False,
                environment=FORGETFUL | TELLING | environment,
            )
            client = stack.enter_context(Client(stack.enter_context(cluster).address))
            await_draft(cluster, client)
            options = as_started(options, cluster)
            clients.append(client)
        yield clients[0], clients[1], ports


def variants(client: Client, concurrency: int) -> list[Variant]:
    """Return the ways to decode."""
    made: list[Variant] = [GatewayVariant(method, client, method) for method in (PLAIN, DRAFT)]
    if concurrency:
        name = at_once(PLAIN, concurrency)
        made.append(ConcurrentVariant(name, client, PLAIN, concurrency))
    return made


def cost(variant: Variant, on: list[Pass], off: list[Pass]) -> Cost:
    """Sum up one way to decode."""
    table = whole if isinstance(variant, ConcurrentVariant) else grid
    grids = table(on), table(off)
    return Cost(name=variant.name, on=rate(grids[0]), off=rate(grids[1]), quotient=ratio(*grids))


if __name__ == "__main__":
    with ending_well():
        main()
