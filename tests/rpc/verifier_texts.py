"""Texts of a verifier over the wire: what they are without it, and how they come step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from paceline.v1 import types_pb2, verifier_pb2, worker_pb2

from common.sampling_params import SamplingParams
from tests.rpc.services import (
    DRAFT_TOKENS,
    Brake,
    RunningDrafter,
    RunningVerifier,
    Text,
    ask,
    braked,
)
from tests.waiting import until

TOKENS = 120


SAMPLING = SamplingParams(temperature=0.8, seed=7)


all_ways = pytest.mark.parametrize("way", ["grpc", "near", "far"])


async def paired(verifier: RunningVerifier, prompt: Sequence[int], *drafters: str) -> None:
    """Generates until the drafter helps: the first request only causes the connection."""
    async with asyncio.timeout(10):
        while True:
            text = await verifier.generate(ask(prompt, 30, *drafters))
            if text.speculation.drafted_tokens:
                return
            await asyncio.sleep(0.02)


async def linked(verifier: RunningVerifier, drafter: str) -> None:
    """Waits for the stream to a drafter, before any text may have used it."""
    link = verifier.proposer.links(drafter)
    await until(link.reach)


def all_warm(drafter: RunningDrafter) -> bool:
    """Whether a drafter has caught up with all that it mirrors."""
    return all(mirror.warm for _, mirror in drafter.engine._mirrors.items())


def check_counts(text: Text, prompt: Sequence[int]) -> None:
    """What a text's usage and statistics must have in common."""
    assert text.complete is not None
    usage, stats = text.complete.usage, text.speculation
    assert usage.prompt_tokens == len(prompt)
    assert usage.completion_tokens == len(text.ids)
    assert usage.cached_tokens < len(prompt)
    assert text.totals is not None
    assert text.totals.rounds == stats.rounds
    assert text.totals.drafted_tokens == stats.drafted_tokens
    assert text.totals.cached_tokens == usage.cached_tokens
    assert text.totals.method == stats.method
    accepted = text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
    assert stats.accepted_tokens == accepted == sum(stats.accepted_per_position)
    assert stats.accepted_tokens <= stats.drafted_tokens <= DRAFT_TOKENS * stats.rounds
    assert stats.rounds <= len(text.ids) <= stats.rounds + accepted
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert stats.acceptance == types_pb2.ACCEPTANCE_COUPLED
    assert not stats.lossy


class Slowly:
    """A text that comes step by step, each with time for drafters, until it is told to go on."""

    def __init__(self, brake: Brake, call: Any) -> None:
        self.text = Text()
        self._brake, self._call = brake, call

    async def step(self) -> None:
        assert len(self.text.ids) < TOKENS, "nothing came of it"
        self._brake.let(1)
        self.text.take(await self._call.read())
        await asyncio.sleep(0.02)

    async def helped(self) -> None:
        """Goes on until one more draft has been right."""
        before = self.text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
        while self.text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED) == before:
            await self.step()

    async def rest(self) -> Text:
        self._brake.open()
        await self.text.rest(self._call)
        return self.text


@contextmanager
def slowly(
    verifier: RunningVerifier, request: verifier_pb2.VerifierGenerateRequest
) -> Iterator[Slowly]:
    with braked(verifier.runner) as brake:
        yield Slowly(brake, verifier.stub.Generate(request, timeout=30))


async def status_of(verifier: RunningVerifier) -> worker_pb2.WatchStatusResponse:
    call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest())
    status: worker_pb2.WatchStatusResponse = await call.read()
    call.cancel()
    return status
