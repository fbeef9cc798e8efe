"""The bench of traffic against a gateway."""

from __future__ import annotations

from bench.traffic import arrivals, measure
from common.model.runner import Runner
from tests.rpc.gateways import gateway
from tests.rpc.services import verifying

RATES = 20, 60
METHODS = "plain", "ngram", "lookahead"


async def test_every_method_gets_every_request(target: Runner, prompts: list[list[int]]) -> None:
    told = []
    every = {
        float(rate): [arrivals(rate, 0.1, len(prompts), 12, seed) for seed in range(2)]
        for rate in RATES
    }
    async with verifying(target) as verifier, gateway(verifier.address, max_concurrent=99) as door:
        lines = await measure(
            f"127.0.0.1:{door.server.port}",
            prompts,
            every,
            METHODS,
            lambda what, done, total: told.append((what, done, total)),
        )
    assert [(line.rate, line.method) for line in lines] == [
        (rate, method) for rate in RATES for method in METHODS
    ]
    for line in lines:
        assert line.requests == sum(map(len, every[line.rate]))
        assert 0 < line.first.p50 <= line.whole.p50 <= line.whole.p99
        assert line.tokens_per_s > 0
    order = [*METHODS, *reversed(METHODS)]
    assert told == [
        (f"{method} at {rate}/s", done, 12)
        for done, (rate, method) in enumerate((r, m) for r in RATES for m in order)
    ]
