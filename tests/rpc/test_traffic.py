"""Waits of requests that come at random, against a gateway."""

from __future__ import annotations

from collections.abc import Sequence

from bench.waits import Arrival, Line, arrivals, measure
from common.model.runner import Runner
from tests.rpc.gateways import gateway
from tests.rpc.scripted_gateway import scripted_gateway
from tests.rpc.services import verifying

RATES = 20, 60
METHODS = "plain", "ngram", "lookahead"


async def measured(
    address: str,
    prompts: list[list[int]],
    every: dict[float, list[list[Arrival]]],
    methods: Sequence[str],
) -> tuple[list[Line], list[str], list[list[int]]]:
    """What is told, in which order passes are made, and the prompts that they ask with."""
    lines, order, asked = list[Line](), list[str](), list[list[int]]()

    def unseen(prompt: Sequence[int]) -> list[int]:
        asked.append([*prompt[:1], 3 + len(asked) % 90, *prompt[1:]])
        return asked[-1]

    def progress(what: str, done: int, total: int) -> None:
        assert (done, total) == (len(order), len(methods) * sum(map(len, every.values())))
        order.append(what)

    await measure(address, prompts, unseen, every, methods, lambda: None, progress, lines.append)
    return lines, order, asked


async def test_every_method_gets_every_request(target: Runner, prompts: list[list[int]]) -> None:
    every = {
        float(rate): [arrivals(rate, 0.1, len(prompts), 12, seed) for seed in range(2)]
        for rate in RATES
    }
    async with verifying(target) as verifier, gateway(verifier.address, max_concurrent=99) as door:
        lines, order, asked = await measured(
            f"127.0.0.1:{door.server.port}", prompts, every, METHODS
        )
    assert [(line.rate, line.method) for line in lines] == [
        (rate, method) for rate in RATES for method in METHODS
    ]
    for line in lines:
        arrived = [each for passes in every[line.rate] for each in passes]
        assert (line.requests, line.refused) == (len(arrived), 0)
        assert 0 < line.first.p50 <= line.whole.p50 <= line.whole.p99
    assert len(asked) == sum(line.requests for line in lines)
    ways = [*METHODS, *reversed(METHODS)]
    assert order == [f"{method} at {rate}/s" for rate in RATES for method in ways]


async def test_who_is_refused_is_counted(target: Runner, prompts: list[list[int]]) -> None:
    at_once = [Arrival(at_s=0.0, prompt=0, tokens=12, seed=seed) for seed in range(9)]
    async with verifying(target) as verifier, gateway(verifier.address, max_concurrent=2) as door:
        (line,), *_ = await measured(
            f"127.0.0.1:{door.server.port}", prompts, {9.0: [at_once]}, ["plain"]
        )
    assert line.requests >= 2
    assert line.refused == 9 - line.requests > 0


async def test_a_wait_counts_from_when_a_request_was_due() -> None:
    late = [Arrival(at_s=-1.0, prompt=0, tokens=6 + seed, seed=seed) for seed in (1, 2)]
    with scripted_gateway() as door:
        (line,), *_ = await measured(door.address, [[3, 4]], {1.0: [late]}, ["ngram"])
        asked = door.requests[1:]  # the first is for what is set up once
    assert 1000 <= line.first.p50 <= line.whole.p50 < 3000
    assert sorted((each.sampling.seed, each.max_tokens) for each in asked) == [(1, 7), (2, 8)]
    assert {each.speculation.method for each in asked} == {"ngram"}
