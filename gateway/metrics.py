"""What a gateway tells Prometheus; requests by the names of OpenTelemetry's conventions."""

from __future__ import annotations

from collections import Counter

from common.store.sessions import SessionStore
from common.telemetry.metrics import Metric, Page, Source
from common.telemetry.store_metric import STORE
from gateway.admission import Admission
from gateway.fleet import Fleet
from gateway.generation import Generations
from gateway.snapshot import State
from gateway.watch import Watch

REQUESTS = Metric(
    name="paceline_requests_total",
    kind="counter",
    help="Calls that ended, by the gRPC code they ended with.",
    labels=("method", "code"),
)
IN_FLIGHT = Metric(
    name="paceline_requests_in_flight",
    kind="gauge",
    help="Calls that generate, tokenize or detokenize now.",
)
FIRST_TOKEN = Metric(
    name="paceline_gen_ai_server_time_to_first_token_seconds",
    kind="histogram",
    help="From the call to its first token.",
    labels=("model", "operation"),
)
OUTPUT_TOKEN = Metric(
    name="paceline_gen_ai_server_time_per_output_token_seconds",
    kind="histogram",
    help="For each token after the first, averaged over a generation.",
    labels=("model", "operation"),
)
DURATION = Metric(
    name="paceline_gen_ai_server_request_duration_seconds",
    kind="histogram",
    help="Of a whole generation.",
    labels=("model", "operation", "code"),
)
MOVES = Metric(
    name="paceline_generation_moves_total",
    kind="counter",
    help="Times that another verifier, or the same one again, went on with a generation.",
)
RETRIES = Metric(
    name="paceline_generation_retries_total",
    kind="counter",
    help="Times that a generation was tried again after a verifier failed it.",
)
TURNS = Metric(
    name="paceline_session_turns_total",
    kind="counter",
    help="Turns of sessions, by what became of the cache: kept (the verifier that has it serves), "
    "moved (another one does), new (nobody is known to have it).",
    labels=("cache",),
)
REFUSALS = Metric(
    name="paceline_refusals_total",
    kind="counter",
    help="Requests over a limit, by tenant; from the hundredth on tenants are counted as other.",
    labels=("tenant",),
)
WORKERS = Metric(
    name="paceline_workers",
    kind="gauge",
    help="Workers listed, by what they can be given: ready, draining (those that left and have not "
    "ended, too), broken (failed too many requests of late), lost.",
    labels=("tier", "pool", "state"),
)
BREAKER = Metric(
    name="paceline_worker_breaker_open",
    kind="gauge",
    help="1 while requests are kept away from a worker that failed too many of late.",
    labels=("tier", "worker"),
)
DESIRED = Metric(
    name="paceline_desired_replicas",
    kind="gauge",
    help="Workers that the pool should have for the present load.",
    labels=("tier", "pool"),
)

METRICS = (
    *(REQUESTS, IN_FLIGHT, FIRST_TOKEN, OUTPUT_TOKEN, DURATION),
    *(MOVES, RETRIES, TURNS, REFUSALS, STORE),
    *(WORKERS, BREAKER, DESIRED),
)


def source(
    watch: Watch,
    admission: Admission,
    generations: Generations,
    fleet: Fleet,
    store: SessionStore | None = None,
) -> Source:
    """What a gateway has to tell.

    Args:
        watch: Follows requests.
        admission: Refuses some.
        generations: Moves some.
        fleet: The workers.
        store: Of sessions, where one is configured.
    """

    def fill(page: Page) -> None:
        _requests(page, watch)
        page.put(IN_FLIGHT, admission.running)
        for tenant, refusals in admission.refused.items():
            page.put(REFUSALS, refusals, tenant)
        page.put(MOVES, generations.moves)
        page.put(RETRIES, generations.retries)
        for cache, turns in generations.turns.items():
            page.put(TURNS, turns, cache)
        if store is not None:
            page.put(STORE, store.available)
        _fleet(page, fleet)

    return Source(metrics=METRICS, fill=fill)


def _requests(page: Page, watch: Watch) -> None:
    for (method, code), calls in watch.codes.items():
        page.put(REQUESTS, calls, method, code)
    for metric, kinds in ((FIRST_TOKEN, watch.first_token), (OUTPUT_TOKEN, watch.output_token)):
        for kind, seconds in kinds.items():
            page.put_all(metric, seconds, *kind)
    for labels, seconds in watch.duration.items():
        page.put_all(DURATION, seconds, *labels)


def _fleet(page: Page, fleet: Fleet) -> None:
    workers, pools = fleet.workers(), fleet.pools()
    found = Counter(
        (view.tier, view.description.pool if view.description else "", view.state)
        for view in workers
    )
    # Those of which nobody is there any more, too: 0 is told, not left out.
    for tier, pool in {(each.tier, each.pool) for each in pools} | {key[:2] for key in found}:
        for state in State:
            page.put(WORKERS, found[tier, pool, state], tier, pool, state)
    for view in workers:
        page.put(BREAKER, view.state is State.BROKEN, view.tier, view.address)
    for each in pools:
        page.put(DESIRED, each.desired, each.tier, each.pool)
