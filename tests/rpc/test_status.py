"""What verifiers and drafters report of each other over the wire."""

from __future__ import annotations

import asyncio

import pytest
from paceline.v1 import types_pb2, worker_pb2

from common.model.runner import Runner
from tests.rpc.services import RunningVerifier, ask, drafting, verifying
from verifier.drafting.clock import DraftClock

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are waited for however busy the machine is."""
    monkeypatch.setattr(DraftClock, "patience_s", 30.0)


async def status_of(verifier: RunningVerifier) -> worker_pb2.WatchStatusResponse:
    call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest())
    status = await call.read()
    call.cancel()
    return status


async def test_a_verifier_reports_its_drafters(patient: None, target: Runner, twin: Runner) -> None:
    adaptive = types_pb2.SpeculationOptions(method="draft")
    async with verifying(target) as verifier, drafting(twin) as drafter:
        before = await status_of(verifier)
        assert list(before.pairs) == []
        assert (before.queue_wait_ms, before.batch_occupancy, before.draft_wait_ms) == (0, 0, 0)
        assert before.plain_step_ms > 0
        async with asyncio.timeout(60):
            status = before
            while not (status.pairs and status.pairs[0].gain and status.pairs[0].rounds):
                await verifier.generate(ask(PROMPT, 60, drafter.address, speculation=adaptive))
                status = await status_of(verifier)
        assert 0 < status.batch_occupancy <= 1
        (pair,) = status.pairs
        assert (pair.drafter, pair.alive) == (drafter.address, True)
        assert pair.rounds <= pair.drafted_tokens
        assert 0 < pair.accepted_tokens <= pair.drafted_tokens
        assert 0 < pair.acceptance <= 1
        assert pair.round_trip_ms >= 0
        assert pair.draft_ms >= 0
        async with asyncio.timeout(60):
            while (await status_of(verifier)).pairs[0].sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_drafts_of_a_fixed_length_say_nothing_of_what_is_gained(
    patient: None, target: Runner, twin: Runner
) -> None:
    """That a length was a bad choice is no fault of the drafter."""
    async with verifying(target) as verifier, drafting(twin) as drafter:
        async with asyncio.timeout(60):
            status = await status_of(verifier)
            while not status.pairs or status.pairs[0].rounds < 40:
                await verifier.generate(ask(PROMPT, 100, drafter.address))
                status = await status_of(verifier)
        assert status.pairs[0].gain == 0
