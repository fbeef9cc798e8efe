"""What a verifier tells Prometheus; speculation by the names that vLLM's metrics have."""

from __future__ import annotations

from collections.abc import Callable

from paceline.v1 import worker_pb2

from common.store.pools import NgramPools
from common.telemetry import worker_metrics
from common.telemetry.metrics import Metric, Page, Source
from common.telemetry.store_metric import STORE
from verifier.engine import Engine
from verifier.sessions import Sessions
from verifier.totals import Drafts

RUNNING = Metric(name="paceline_num_requests_running", kind="gauge", help="Requests in the batch.")
WAITING = Metric(
    name="paceline_num_requests_waiting", kind="gauge", help="Requests waiting for admission."
)
QUEUE_WAIT = Metric(
    name="paceline_queue_wait_seconds",
    kind="gauge",
    help="Moving average of the time a request waits for admission, or how long one has waited so "
    "far, where that is more.",
)
DRAFT_WAIT = Metric(
    name="paceline_draft_wait_seconds",
    kind="gauge",
    help="Moving average of the time a round waits for its draft.",
)
PLAIN_STEP = Metric(
    name="paceline_plain_step_seconds",
    kind="gauge",
    help="What a step of the present batch would take without drafts.",
)
PROMPT_TOKENS = Metric(
    name="paceline_prompt_tokens_total",
    kind="counter",
    help="Tokens of prompts whose first token was chosen, those found in the cache included.",
)
GENERATION_TOKENS = Metric(
    name="paceline_generation_tokens_total", kind="counter", help="Tokens committed."
)
PREFIX_QUERIES = Metric(
    name="paceline_prefix_cache_queries_total",
    kind="counter",
    help="Prompt tokens that were looked for in the cache.",
)
PREFIX_HITS = Metric(
    name="paceline_prefix_cache_hits_total",
    kind="counter",
    help="Prompt tokens whose keys and values were there already.",
)
PREEMPTIONS = Metric(
    name="paceline_num_preemptions_total",
    kind="counter",
    help="Times that a request gave its cache back and waited again.",
)
FAILURES = Metric(
    name="paceline_engine_failures_total",
    kind="counter",
    help="Errors that cost no text, by what failed: pass (of several texts, which were then tried "
    "one by one), passes (several in one call), draft (a method).",
    labels=("where",),
)
STALE_EPOCHS = Metric(
    name="paceline_stale_epochs_total",
    kind="counter",
    help="Requests refused or ended because a later one had taken their session over.",
)
SESSIONS = Metric(
    name="paceline_sessions", kind="gauge", help="Sessions whose cache is kept, or in use."
)
NGRAMS_DROPPED = Metric(
    name="paceline_ngrams_dropped_total",
    kind="counter",
    help="N-grams not written to the store: it was away, or they came too fast; absent where none "
    "is configured.",
)
NGRAMS_WRITTEN = Metric(
    name="paceline_ngrams_written_total",
    kind="counter",
    help="N-grams written to the store, repetitions included; absent where none is configured.",
)
NGRAM_SETS_READ = Metric(
    name="paceline_ngram_sets_read_total",
    kind="counter",
    help="Sets of n-grams, those with one first token, read from the store; absent where none is "
    "configured.",
)
NGRAM_SETS_EVICTED = Metric(
    name="paceline_ngram_sets_evicted_total",
    kind="counter",
    help="Sets of n-grams that writes pushed out of `pools.max_bytes`; absent where no store is "
    "configured.",
)
DRAFTS = Metric(
    name="paceline_spec_decode_num_drafts_total",
    kind="counter",
    help="Rounds that checked a draft.",
    labels=("method",),
)
DRAFT_TOKENS = Metric(
    name="paceline_spec_decode_num_draft_tokens_total",
    kind="counter",
    help="Draft tokens checked.",
    labels=("method",),
)
ACCEPTED_TOKENS = Metric(
    name="paceline_spec_decode_num_accepted_tokens_total",
    kind="counter",
    help="Draft tokens committed.",
    labels=("method",),
)
ACCEPTED_PER_POSITION = Metric(
    name="paceline_spec_decode_num_accepted_tokens_per_pos_total",
    kind="counter",
    help="Draft tokens committed, by their place in the draft, from 0.",
    labels=("method", "position"),
)
PAIR_ALIVE = Metric(
    name="paceline_pair_alive",
    kind="gauge",
    help="1 while the stream to the drafter is up.",
    labels=("drafter",),
)
PAIR_SESSIONS = Metric(
    name="paceline_pair_sessions",
    kind="gauge",
    help="Sessions that the drafter mirrors for this verifier.",
    labels=("drafter",),
)
PAIR_ROUNDS = Metric(
    name="paceline_pair_rounds_total",
    kind="counter",
    help="Rounds that checked a draft of the drafter.",
    labels=("drafter",),
)
PAIR_DRAFTED = Metric(
    name="paceline_pair_drafted_tokens_total",
    kind="counter",
    help="Draft tokens of the drafter that were checked.",
    labels=("drafter",),
)
PAIR_ACCEPTED = Metric(
    name="paceline_pair_accepted_tokens_total",
    kind="counter",
    help="Draft tokens of the drafter that were committed.",
    labels=("drafter",),
)
PAIR_ROUND_TRIP = Metric(
    name="paceline_pair_round_trip_seconds",
    kind="gauge",
    help="From an outcome told to the drafter to its branch, less the drafting.",
    labels=("drafter",),
)
PAIR_DRAFT = Metric(
    name="paceline_pair_draft_seconds",
    kind="gauge",
    help="What one token of the drafter takes.",
    labels=("drafter",),
)
PAIR_GAIN = Metric(
    name="paceline_pair_gain_ratio",
    kind="gauge",
    help="Tokens a second of the drafter's sessions over what plain steps would give them; 0 while "
    "unknown.",
    labels=("drafter",),
)

METRICS = (
    *worker_metrics.METRICS,
    *(RUNNING, WAITING, QUEUE_WAIT, DRAFT_WAIT, PLAIN_STEP),
    *(PROMPT_TOKENS, GENERATION_TOKENS, PREFIX_QUERIES, PREFIX_HITS, PREEMPTIONS),
    *(FAILURES, STALE_EPOCHS, SESSIONS, STORE, NGRAMS_DROPPED),
    *(NGRAMS_WRITTEN, NGRAM_SETS_READ, NGRAM_SETS_EVICTED),
    *(DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POSITION),
    *(PAIR_ALIVE, PAIR_SESSIONS, PAIR_ROUNDS, PAIR_DRAFTED, PAIR_ACCEPTED),
    *(PAIR_ROUND_TRIP, PAIR_DRAFT, PAIR_GAIN),
)


def source(
    description: worker_pb2.DescribeResponse,
    status: Callable[[], worker_pb2.WatchStatusResponse],
    engine: Engine,
    sessions: Sessions,
    pools: NgramPools | None = None,
) -> Source:
    """What a verifier has to tell.

    Args:
        description: What it is.
        status: Its load, as gateways are told.
        engine: Counts.
        sessions: Those it knows.
        pools: Shared n-grams, where they are kept in a store.
    """

    def fill(page: Page) -> None:
        now = status()
        worker_metrics.fill(page, description, now, engine.totals.steps)
        _load(page, now)
        _engine(page, engine)
        _pairs(page, now)
        page.put(SESSIONS, sessions.kept)
        if pools is not None:
            counts = pools.counts
            page.put(STORE, not counts.away)
            page.put(NGRAMS_DROPPED, counts.dropped)
            page.put(NGRAMS_WRITTEN, counts.written)
            page.put(NGRAM_SETS_READ, counts.read)
            page.put(NGRAM_SETS_EVICTED, counts.evicted)

    return Source(metrics=METRICS, fill=fill, labels=worker_metrics.labels(description))


def _load(page: Page, status: worker_pb2.WatchStatusResponse) -> None:
    page.put(RUNNING, status.running)
    page.put(WAITING, status.waiting)
    page.put(QUEUE_WAIT, status.queue_wait_ms / 1e3)
    page.put(DRAFT_WAIT, status.draft_wait_ms / 1e3)
    page.put(PLAIN_STEP, status.plain_step_ms / 1e3)
    page.put(GENERATION_TOKENS, status.tokens)
    page.put(STALE_EPOCHS, status.stale_epochs)


def _engine(page: Page, engine: Engine) -> None:
    totals = engine.totals
    page.put(PROMPT_TOKENS, totals.prompt_tokens)
    page.put(PREFIX_QUERIES, totals.prompt_tokens)
    page.put(PREFIX_HITS, totals.cached_tokens)
    page.put(PREEMPTIONS, engine.preemptions)
    for where, count in engine.failures.counts.items():
        page.put(FAILURES, count, where)
    # What may draft is there from the start: of a counter that comes with its first event no rate
    # has that event.
    offered = {method: Drafts() for method in engine.limits.methods if method != "plain"}
    for method, drafts in (offered | totals.drafts).items():
        page.put(DRAFTS, drafts.rounds, method)
        page.put(DRAFT_TOKENS, drafts.drafted_tokens, method)
        page.put(ACCEPTED_TOKENS, drafts.accepted_tokens, method)
        for position, tokens in enumerate(list(drafts.accepted_per_position)):
            page.put(ACCEPTED_PER_POSITION, tokens, method, str(position))


def _pairs(page: Page, status: worker_pb2.WatchStatusResponse) -> None:
    for pair in status.pairs:
        for metric, value in (
            (PAIR_ALIVE, pair.alive),
            (PAIR_SESSIONS, pair.sessions),
            (PAIR_ROUNDS, pair.rounds),
            (PAIR_DRAFTED, pair.drafted_tokens),
            (PAIR_ACCEPTED, pair.accepted_tokens),
            (PAIR_ROUND_TRIP, pair.round_trip_ms / 1e3),
            (PAIR_DRAFT, pair.draft_ms / 1e3),
            (PAIR_GAIN, pair.gain),
        ):
            page.put(metric, value, pair.drafter)
