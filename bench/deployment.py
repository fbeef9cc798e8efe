"""The services a run of the bench measures, and what they can do."""

from __future__ import annotations

import time

from paceline import Client

from bench.settings import DRAFT, Settings
from launcher.commandline import WorkerOptions

JOIN_S = 30.0
"""Time a drafter gets to be found by the gateway."""

TICK_S = 0.2

FORGETFUL = {"PACELINE_VERIFIER_SHARE_NGRAMS": "false"}
"""Environment of a deployment whose requests do not learn from each other: the same prompts are
asked again and again, and what one pass wrote would answer the next."""

IN_LOCKSTEP = {"PACELINE_VERIFIER_ENGINE__DRAFT_FANOUT": "0"}
"""Environment of a deployment whose drafter never drafts ahead."""


def options(settings: Settings) -> WorkerOptions:
    """Return what both models' processes are told."""
    return WorkerOptions(
        dtype=settings.dtype,
        quantize=settings.quantize,
        draft_quantize=settings.draft_quantize,
        device=settings.device,
        gpu_memory_share=0.3,  # deployments and contenders stand beside each other
        threads=settings.threads,
    )


def offered(client: Client) -> tuple[str, ...]:
    """Return the methods the deployment lists."""
    return client.models()[0].methods


def await_draft(client: Client) -> bool:
    """Wait until the deployment drafts; return whether it does."""
    deadline_s = time.monotonic() + JOIN_S
    while DRAFT not in offered(client):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(TICK_S)
    return True
