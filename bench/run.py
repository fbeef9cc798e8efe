"""One run of the bench: start everything, measure in turns, sum up."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import psutil
import torch
from paceline import Client
from paceline import PacelineError as ClientError

from bench import prompts, round_trips, summary
from bench.deployment import (
    FORGETFUL,
    IN_LOCKSTEP,
    TELLING,
    as_started,
    offered,
    options,
)
from bench.in_turns import Passes, measure
from bench.plan import Plan, plan
from bench.progress import Progress
from bench.report import Report
from bench.settings import DRAFT, LOCKSTEP, PLAIN, Settings
from bench.variants import GatewayVariant
from common.errors import PacelineError, StartupError
from common.model.linear import packing_works
from launcher.cluster import Cluster, Watcher
from launcher.commandline import WorkerOptions
from launcher.drafting import await_draft, check_drafter

Watchers = Callable[[], Watcher]
"""Makes one for each deployment, whose services have the same names."""


def run(settings: Settings, watchers: Watchers, progress: Progress) -> Report:
    """Run the bench.

    Args:
        settings: What to run.
        watchers: Told how the services come up.
        progress: Told what is next.

    Raises:
        StartupError: Nothing could be compared.
        KeyboardInterrupt: It came before one repetition was whole; later, it ends the run early.
    """
    chosen = prompts.load(settings.per_domain)
    found: Report | None = None
    try:
        with ExitStack() as stack:
            found, workers = compared(settings, chosen, watchers, progress, stack)
        if not found.interrupted:
            delays = delayed(settings, workers, watchers(), progress, found.left_out)
            found = with_round_trips(found, delays)
    except KeyboardInterrupt:  # also of somebody who has no patience while services stop
        if found is None:
            raise
        found = replace(found, interrupted=True)
    if found.interrupted and settings.round_trips_ms:
        found.left_out.append("round trips: interrupted")
    return found


def compared(
    settings: Settings,
    chosen: list[prompts.Prompt],
    watchers: Watchers,
    progress: Progress,
    stack: ExitStack,
) -> tuple[Report, WorkerOptions]:
    """Measure all but round trips; return what was found, and how the services ran.

    Args:
        settings: What to run.
        chosen: The prompts.
        watchers: Told how the services come up.
        progress: Told what is next.
        stack: Stops what is started.

    Raises:
        StartupError: Nothing could be compared.
        KeyboardInterrupt: It came before one repetition was whole.
    """
    cluster = stack.enter_context(
        Cluster(
            models=settings.models,
            options=options(settings),
            watch=watchers(),
            environment=FORGETFUL | TELLING,
        )
    )
    client = stack.enter_context(Client(cluster.address))
    if settings.models.draft:
        await_draft(cluster, client)
    workers = as_started(options(settings), cluster)
    planned = plan(
        settings,
        workers,
        offered(client),
        client,
        stack,
        marks=prompts.ordinary(client) if settings.unseen_prompts else (),
        check=partial(check_drafter, cluster),
    )
    if settings.full and settings.models.draft:
        try:
            planned.single.append(lockstep(settings, workers, watchers(), stack))
        except (PacelineError, ClientError) as error:
            planned.left_out.append(f"{LOCKSTEP}: {error}")
    passes = measure(
        [*planned.single, *(variant for _, _, variant in planned.concurrent)],
        prompts.encode(chosen, client),
        repetitions=settings.repetitions,
        max_tokens=settings.max_tokens,
        progress=progress,
    )
    if PLAIN not in passes.by_variant:
        raise StartupError(f"nothing to compare with: {'; '.join(passes.left_out)}")
    found = report(settings, workers, chosen, planned, passes, resident_bytes(cluster))
    return found, workers


def lockstep(
    settings: Settings, workers: WorkerOptions, watch: Watcher, stack: ExitStack
) -> GatewayVariant:
    """Start a second deployment, which sleeps between its turns and never drafts ahead.

    Raises:
        StartupError: It does not draft.
    """
    cluster = Cluster(
        models=settings.models,
        options=workers,
        with_store=False,
        watch=watch,
        environment=IN_LOCKSTEP,
    )
    with ExitStack() as own:  # one that does not draft is not to stand beside the others
        client = own.enter_context(Client(own.enter_context(cluster).address))
        await_draft(cluster, client)
        stack.push(own.pop_all())
    check = partial(check_drafter, cluster)
    return GatewayVariant(LOCKSTEP, client, DRAFT, temperature=settings.temperature, check=check)


def delayed(
    settings: Settings,
    workers: WorkerOptions,
    watch: Watcher,
    progress: Progress,
    left_out: list[str],
) -> round_trips.RoundTrips | None:
    """Measure with round trips added, if that is asked for and can be done."""
    if not settings.round_trips_ms:
        return None
    if settings.models.draft is None:
        left_out.append("round trips: there is no draft model")
        return None
    try:
        return round_trips.run(settings, workers, watch, progress)
    except (PacelineError, ClientError, OSError) as error:  # no such address, a port that is taken
        left_out.append(f"round trips: {error}")
        return None


def report(
    settings: Settings,
    workers: WorkerOptions,
    chosen: list[prompts.Prompt],
    planned: Plan,
    passes: Passes,
    gateway_rss_bytes: int,
) -> Report:
    """Sum up."""
    domains = summary.by_domain(chosen)
    measured = passes.by_variant
    single = [variant.name for variant in planned.single if variant.name in measured]
    return Report(
        settings=described(settings, workers),
        prompts=len(chosen),
        rows=[summary.row(name, measured[name], measured[PLAIN], domains) for name in single],
        loads=[
            summary.load(
                method,
                count,
                measured[variant.name],
                measured[PLAIN],
                unseen=settings.unseen_prompts,
            )
            for method, count, variant in planned.concurrent
            if variant.name in measured
        ],
        round_trips=None,
        ratios=summary.ratios(settings, measured, set(single), domains),
        left_out=[*planned.left_out, *passes.left_out],
        gateway_rss_bytes=gateway_rss_bytes,
        interrupted=passes.interrupted,
    )


def with_round_trips(found: Report, delays: round_trips.RoundTrips | None) -> Report:
    """Add that part, where there is one."""
    if delays is None:
        return found
    ratios = [*found.ratios, *summary.delayed_ratios(delays)]
    return replace(found, round_trips=delays, ratios=ratios)


def resident_bytes(cluster: Cluster) -> int:
    """Return the gateway's memory after all that work."""
    gateway = cluster.services[-1].process
    assert gateway
    return int(psutil.Process(gateway.pid).memory_info().rss)


def described(settings: Settings, workers: WorkerOptions) -> dict[str, str | float]:
    """Return what somebody needs to repeat the run."""
    models = settings.models
    return {
        "target": models.target.name,
        "draft": models.draft.name if models.draft else "none",
        "medusa": models.medusa.name if models.medusa else "none",
        "eagle": models.eagle.name if models.eagle else "none",
        "dtype": settings.dtype,
        "quantize": settings.quantize,
        "draft_quantize": workers.draft_quantize,
        "device": settings.device,
        "threads": workers.own_threads,
        "most_threads": workers.most_threads,
        "cores": os.cpu_count() or 0,
        "bfloat16_products": packing_works(torch.bfloat16),
        "repetitions": settings.repetitions,
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "unseen_prompts": settings.unseen_prompts,
    }
