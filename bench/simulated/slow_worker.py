"""One worker: a real verifier or drafter, on a model that takes the time it is told."""

from __future__ import annotations

from collections.abc import Callable

import torch
import uvloop

from bench.simulated.far_link import move_away
from bench.simulated.slow_runner import SlowRunner
from bench.simulated.spec import WorkerSpec
from common import logs
from common.rpc import server
from common.telemetry.span import Traces
from drafter import serving as drafter_serving
from drafter.config import DrafterConfig
from verifier import serving as verifier_serving
from verifier.config import EngineConfig, VerifierConfig
from verifier.cost import StepCost

GRACE_S = 30.0


def run(spec: WorkerSpec, on_ready: Callable[[int], None]) -> None:
    """Serves until it is told to stop.

    Args:
        spec: What it is told.
        on_ready: Called with its port.
    """
    logs.configure(spec.name, "warning")
    torch.set_num_threads(1)
    server.announce = lambda service, port: on_ready(port)
    runner = SlowRunner(
        spec.model,
        step_s=spec.step_s,
        session_s=spec.session_s,
        acceptance=spec.acceptance,
        seed=sum(spec.name.encode()),
    )
    if spec.tier == "drafter":
        config = DrafterConfig(model=spec.model, pool=spec.pool, port=0, grace_s=GRACE_S)
        uvloop.run(drafter_serving.serve(config, runner))
        return
    move_away(spec.round_trip_s)
    settings = VerifierConfig(
        model=spec.model,
        pool=spec.pool,
        port=0,
        grace_s=GRACE_S,
        share_ngrams=False,
        engine=EngineConfig(max_running=spec.max_running),
    )
    # Rows cost nothing here, which need not be measured.
    cost = StepCost([(1, spec.step_s), (64, spec.step_s)])
    uvloop.run(verifier_serving.serve(settings, runner, None, None, cost, Traces()))
