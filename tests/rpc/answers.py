"""One text asked of a gateway, whoever of its verifiers writes it."""

from __future__ import annotations

import grpc
import pytest
from paceline.v1 import types_pb2

from common.errors import PacelineError
from tests.rpc.gateways import Answer, Gateway, ids_of

PROMPT = [5, 6, 7, 8]
SEED = 11
SAMPLING = types_pb2.SamplingParams(temperature=1.0, seed=SEED)

SICK = PacelineError("the engine failed")


async def answer(target: Gateway, **fields: object) -> Answer:
    return await target.generate(
        **{"token_ids": ids_of(*PROMPT), "max_tokens": 40, "sampling": SAMPLING} | fields
    )


def check_counts(found: Answer) -> None:
    """The numbers tell of the whole generation, whoever did which part."""
    usage, stats = found.complete.usage, found.complete.speculation
    sources = [source for chunk in found.chunks for source in chunk.sources]
    accepted = sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
    assert usage.prompt_tokens == len(PROMPT)
    assert usage.completion_tokens == len(found.ids)
    assert stats.accepted_tokens == sum(stats.accepted_per_position) == accepted
    assert stats.drafted_tokens == 2 * stats.rounds
    assert len(sources) - accepted <= stats.rounds


async def failed(target: Gateway, **fields: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(target, **fields)
    return caught.value
