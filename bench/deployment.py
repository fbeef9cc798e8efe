"""The services a run of the bench measures, and what they can do."""

from __future__ import annotations

from dataclasses import replace

from paceline import Client

from bench.settings import Settings
from common.errors import StartupError
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.process import message

ROUNDING = "rounding measured"
"""What a drafter calls it in its log that it chose by itself, with `int8` if that was it."""

LOADED = "model loaded"
"""What it says after that, whatever it chose."""

FORGETFUL = {"PACELINE_VERIFIER_SHARE_NGRAMS": "false"}
"""Environment of a deployment whose requests do not learn from each other: the same prompts are
asked again and again, and what one pass wrote would answer the next."""

TELLING = {"PACELINE_DRAFTER_LOG_LEVEL": "info"}
"""Environment of a deployment whose drafter says what it chose, see `as_started`."""

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


def as_started(workers: WorkerOptions, cluster: Cluster) -> WorkerOptions:
    """Return what the processes of a deployment run by, with what its drafter chose for itself.

    Whoever is to be like it gets these: a drafter that chooses anew may choose otherwise.

    Args:
        workers: What they were told.
        cluster: The deployment, serving, with `TELLING` in its environment.

    Raises:
        StartupError: Its drafter's log does not say.
    """
    if workers.draft_quantize != "auto":
        return workers
    logs = [one.process.log for one in cluster.services if one.name == "drafter" and one.process]
    lines = [line for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
    told = [message(line) or {} for line in lines]
    if logs and not any(one.get("event") == LOADED for one in told):
        raise StartupError("the drafter's log does not say what its weights are rounded to")
    rounded = any(one.get("event") == ROUNDING and one.get("int8") for one in told)
    return replace(workers, draft_quantize="int8" if rounded else "none")
