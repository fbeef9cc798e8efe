"""Throughput against the round trip between verifier and drafter, and what the model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from paceline import Client

from bench import drafter_probe, prompts, step_times
from bench.confidence import Estimate, grid, rate, ratio
from bench.link import SlowLink
from bench.measurement import Pass
from bench.ports import free_ports
from bench.progress import Progress
from bench.rate_model import Calibration, Rounds, predicted
from bench.settings import DRAFT, PLAIN, Settings
from bench.variants import Check, GatewayVariant
from launcher.cluster import Cluster, Watcher
from launcher.commandline import WorkerOptions
from launcher.drafting import await_draft, check_drafter

LENGTHS = (2, 4, 8)
"""Draft lengths the model is calibrated with."""

HALF_STEP_LEAST = 0.9
"""Share of its rate that drafting should keep with a round trip of half a step."""

_ELSEWHERE = "127.0.0.2"
"""Where the verifier finds the drafter: slow links listen here at the drafter's own ports."""


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Drafting with one added round trip."""

    round_trip_ms: float
    """Added to a message and its answer together."""

    measured: Estimate
    """Tokens a second."""

    predicted: float | None
    """The same, by `bench.rate_model`; None without added delay, where it was calibrated."""

    kept: Estimate
    """Share of the rate with the least delay."""


@dataclass(frozen=True, kw_only=True)
class RoundTrips:
    """That part of a run."""

    plain: Estimate
    """Tokens a second without drafts."""

    half_step_ms: float
    """Half of a plain step; one of the delays."""

    drafter_token_ms: float
    """Time of a draft token."""

    drafter_way_ms: float
    """Time of an answer besides, without added delay."""

    hits: dict[str, float]
    """Share of rounds drafted for ahead, as the model has it, by draft length."""

    besides_ms: dict[str, float]
    """Time of a round that the model does not account for, by draft length."""

    rows: list[RoundTrip]
    """By delay, rising."""


def run(
    settings: Settings, workers: WorkerOptions, watch: Watcher, progress: Progress
) -> RoundTrips:
    """Measure that part: a deployment of its own, with slow links before the drafter.

    Args:
        settings: What is asked for.
        workers: How the services run their models.
        watch: Told how they come up.
        progress: Told what is next.

    Raises:
        StartupError: The deployment does not draft, or not any more.
        OSError: A slow link has no address to listen on.
    """
    progress("step times", 0, 1)
    steps = step_times.measure(
        str(settings.models.target),
        settings.dtype,
        workers.own_threads,
        settings.device,
        most_threads=workers.most_threads,
        quantize=workers.quantize,
    ).steps
    (lane_port,) = free_ports(1)
    links: list[SlowLink] = []
    with ExitStack() as stack:

        def slow(address: str) -> str:
            for there in (f"127.0.0.1:{lane_port}", address):
                port = int(there.rpartition(":")[2])
                links.append(stack.enter_context(SlowLink(there, _ELSEWHERE, port)))
            return links[-1].address

        # As on another machine: a lane within this one would pass the slow links by.
        by_network = {"PACELINE_DRAFTER_LANES": "false", "PACELINE_DRAFTER_LANE_PORT": lane_port}
        cluster = Cluster(
            models=settings.models,
            options=workers,
            watch=watch,
            drafter_link=slow,
            environment={name: str(value) for name, value in by_network.items()},
        )
        client = stack.enter_context(Client(stack.enter_context(cluster).address))
        await_draft(cluster, client)
        ids = prompts.encode(prompts.load(settings.per_domain), client)
        check = partial(check_drafter, cluster)
        return _measure(settings, client, links, ids, steps, progress, check)


def _measure(
    settings: Settings,
    client: Client,
    links: Sequence[SlowLink],
    ids: Sequence[Sequence[int]],
    steps: step_times.Table,
    progress: Progress,
    check: Check,
) -> RoundTrips:
    progress("asking the drafter", 0, 1)
    answering = drafter_probe.probe(links[-1].address, ids[0])
    heat = settings.temperature
    plain = GatewayVariant(PLAIN, client, PLAIN, temperature=heat)
    rough = max(plain.measure(ids, settings.max_tokens).tokens_per_s, 1.0)
    half_step_ms = round(500 / rough, 1)
    delays_ms = sorted({0.0, *settings.round_trips_ms, half_step_ms})
    draft = GatewayVariant(DRAFT, client, DRAFT, temperature=heat, check=check)
    fixed = {
        length: GatewayVariant(
            f"{DRAFT}, {length} tokens", client, DRAFT, length, temperature=heat, check=check
        )
        for length in LENGTHS
    }
    turns = [(0.0, plain), *((0.0, variant) for variant in fixed.values())]
    turns += [(delay_ms, draft) for delay_ms in delays_ms]
    found = _in_turns(turns, links, ids, settings, progress, list(fixed.values()))
    return _summed(found, fixed, delays_ms, half_step_ms, steps, answering)


def _summed(
    found: dict[tuple[float, str], list[Pass]],
    fixed: dict[int, GatewayVariant],
    delays_ms: Sequence[float],
    half_step_ms: float,
    steps: step_times.Table,
    answering: drafter_probe.Answering,
) -> RoundTrips:
    """What was measured beside what the model predicts, which all without added delay tells.

    Args:
        found: Passes by delay and variant.
        fixed: Variants by draft length.
        delays_ms: Round trips that were added.
        half_step_ms: One of them: half of a plain step.
        steps: Times of steps by their rows.
        answering: Times of the drafter.
    """
    plain_s = 1 / max(rate(grid(found[0.0, PLAIN])).value, 1.0)

    def calibrated(texts: Sequence[int]) -> Calibration:
        return Calibration(
            plain_s=plain_s,
            steps=steps,
            answering=answering,
            rounds={
                length: by_round([_of(one, texts) for one in found[0.0, variant.name]])
                for length, variant in fixed.items()
            },
        )

    lengths = [sample.tokens for sample in found[0.0, PLAIN][0].samples]
    each = [(tokens, calibrated([text])) for text, tokens in enumerate(lengths) if tokens]
    together = calibrated(range(len(lengths)))
    return RoundTrips(
        plain=rate(grid(found[0.0, PLAIN])),
        half_step_ms=half_step_ms,
        drafter_token_ms=1e3 * answering.token_s,
        drafter_way_ms=1e3 * answering.way_s,
        hits={str(length): share for length, share in together.hits.items()},
        besides_ms={str(length): 1e3 * some for length, some in together.besides.items()},
        rows=[
            RoundTrip(
                round_trip_ms=delay_ms,
                measured=rate(grid(found[delay_ms, DRAFT])),
                predicted=predicted(each, delay_ms / 1e3) if delay_ms else None,
                kept=ratio(grid(found[delay_ms, DRAFT]), grid(found[0.0, DRAFT])),
            )
            for delay_ms in delays_ms
        ],
    )


def _in_turns(
    turns: Sequence[tuple[float, GatewayVariant]],
    links: Sequence[SlowLink],
    ids: Sequence[Sequence[int]],
    settings: Settings,
    progress: Progress,
    asking: Sequence[GatewayVariant],
) -> dict[tuple[float, str], list[Pass]]:
    """Measure each variant with its delay, again and again, by delay and name.

    Before each, the verifier learns the delay from those that ask for drafts in any case: where
    drafts did not pay, it takes longer than a pass to find out that they would.
    """
    found: dict[tuple[float, str], list[Pass]] = {}
    done, total = 0, settings.repetitions * len(turns)
    for repetition in range(settings.repetitions):
        for delay_ms, variant in turns if repetition % 2 == 0 else reversed(turns):
            when = f"{repetition + 1}/{settings.repetitions}"
            progress(f"{when}: {delay_ms:g} ms round trip, {variant.name}", done, total)
            for link in links:
                link.round_trip_s = delay_ms / 1e3
            for one in asking:
                one.measure(ids[:2], settings.max_tokens)
            found.setdefault((delay_ms, variant.name), []).append(
                variant.measure(ids, settings.max_tokens)
            )
            done += 1
    return found


def _of(one: Pass, texts: Sequence[int]) -> Pass:
    """Return the part of a pass that some texts make up."""
    return Pass.of([one.samples[text] for text in texts])


def by_round(passes: Sequence[Pass]) -> Rounds:
    """Return what a round of these passes did; the clock starts after each prompt's first."""
    every = [s.speculation for one in passes for s in one.samples if s.speculation]
    rounds = sum(one.rounds - 1 for one in every)
    return Rounds(
        drafted=sum(one.drafted_tokens for one in every) / max(rounds, 1),
        committed=sum(one.tokens for one in passes) / max(rounds, 1),
        seconds=sum(one.seconds for one in passes) / max(rounds, 1),
    )
