"""`python -m bench.pool_warmth`: lookahead with an empty shared pool, and with a warm one.

Half of the prompts of every domain but the one that repeats itself are decoded by one verifier,
once greedily and a few times drawn; its n-grams go to the store. A second verifier, started
afterwards with that store, decodes the other half, each prompt once, in turn with plain decoding;
so does one whose store is empty. No prompt that is measured has warmed anything. Steps are timed at
the client; `bench.window_cost` has their rows, and the sizes of the window.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline import Client

from bench import prompts
from bench.arguments import at_least, ending_well
from bench.measurement import Pass
from bench.round_trips import by_round
from bench.summary import acceptance_rate, mean_accepted_length
from bench.tables import figure
from bench.variants import sample
from launcher import store
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.models import Models, bundled
from launcher.timing import Timed, rate, timed

SETTLE_S = 1.0
"""Time for what was written behind to arrive."""

DRAWN_TEMPERATURE = 0.8
"""Of the texts that warm a pool, but for the first of each prompt."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a line for each pool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--max-tokens", type=at_least(2), default=96, help="tokens of each text")
    parser.add_argument(
        "--warming", type=at_least(1), default=4, help="texts of each prompt that warm the pool"
    )
    parser.add_argument(
        "--repetitions", type=at_least(1), default=3, help="fresh stores to do it with"
    )
    given = parser.parse_args(argv)
    models = Models(target=bundled("target"))
    runs = [once(models, given.max_tokens, given.warming) for _ in range(given.repetitions)]
    for name in ("empty", "warm"):
        print(line(name, [run[name] for run in runs]))


def line(name: str, runs: Sequence[tuple[Sequence[Timed], Sequence[Timed]]]) -> str:
    """Say what lookahead came to with one pool.

    Args:
        name: The pool's.
        runs: Plain decoding and lookahead, of each repetition.
    """
    speedup = statistics.median(rate(ran) / rate(plain) for plain, ran in runs)
    plain, looked = ([Pass.of(list(map(sample, run[at]))) for run in runs] for at in range(2))
    step_ms, plain_ms = (1e3 * by_round(passes).seconds for passes in (looked, plain))
    return (
        f"{name}: {speedup:.2f}x plain, {figure(mean_accepted_length(looked))} tokens/pass, "
        f"{figure(acceptance_rate(looked))} of the guesses right, "
        f"{step_ms:.2f} ms a step where plain ones take {plain_ms:.2f}"
    )


def once(
    models: Models, max_tokens: int, warming: int
) -> dict[str, tuple[list[Timed], list[Timed]]]:
    """Measure with one pair of stores.

    Args:
        models: Of the verifiers.
        max_tokens: Of each text.
        warming: Texts of each prompt that warm the pool.

    Returns:
        Plain decoding and lookahead by pool.
    """
    asked = [prompt for prompt in prompts.load() if prompt.domain != "repeating"]
    half, rest = asked[1::2], asked[::2]
    measured = {}
    for name in ("empty", "warm"):
        with store.running() as url:
            if name == "warm":
                with verifier(models, url) as client:
                    warm(client, half, max_tokens, warming)
            with verifier(models, url) as client:
                plain, ran = texts(client, rest, max_tokens, ("plain", "lookahead"))
            assert [one.result.token_ids for one in plain] == [
                one.result.token_ids for one in ran
            ], "one seed, one text"
            measured[name] = plain, ran
    return measured


def warm(client: Client, chosen: Sequence[prompts.Prompt], max_tokens: int, count: int) -> None:
    """Decode each prompt `count` times, the first time greedily, and let the n-grams arrive."""
    for ids in prompts.encode(list(chosen), client):
        for seed in range(count):
            client.generate(
                token_ids=ids,
                method="lookahead",
                max_tokens=max_tokens,
                temperature=DRAWN_TEMPERATURE if seed else 0.0,
                seed=seed,
            ).result()
    time.sleep(SETTLE_S)


def texts(
    client: Client, chosen: Sequence[prompts.Prompt], max_tokens: int, methods: Sequence[str]
) -> list[list[Timed]]:
    """Decode prompts by each method in turn."""
    done: list[list[Timed]] = [[] for _ in methods]
    for ids in prompts.encode(list(chosen), client):
        for method, ran in zip(methods, done, strict=True):
            ran.append(timed(client.generate(token_ids=ids, method=method, max_tokens=max_tokens)))
    return done


@contextmanager
def verifier(models: Models, url: str) -> Iterator[Client]:
    """A verifier behind a gateway, which shares n-grams through a store."""
    cluster = Cluster(
        models=models,
        options=WorkerOptions(threads=1),
        with_store=False,
        environment={"PACELINE_VERIFIER_STORE_URL": url},
    )
    with cluster, Client(cluster.address) as client:
        yield client


if __name__ == "__main__":
    with ending_well():
        main()
