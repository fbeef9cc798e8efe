"""The fleet at one moment, as a gateway reports it, and what two moments say about speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Tier(StrEnum):
    """Half of the fleet."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"


class State(StrEnum):
    """What a worker can be given."""

    READY = "ready"
    DRAINING = "draining"
    BROKEN = "broken"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a worker is; constant over its life."""

    incarnation: int
    """New at each start of the process."""
    model: str
    """The model's name."""
    tokenizer: str
    """Hash of the tokenizer; empty where the model has none."""
    numerics: str
    """Hash of what decides the bits of the logits."""
    vocab_size: int
    """Ids of the model."""
    methods: tuple[str, ...]
    """Speculation methods of a verifier."""
    version: str
    """Of the software."""
    dtype: str
    """torch dtype of the weights."""
    device: str
    """torch device."""
    accelerator: str
    """What computes; empty where the worker does not say."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A worker's last report."""

    running: int
    """Sequences in the batch."""
    waiting: int
    """Sequences that wait for admission."""
    kv_blocks_total: int
    """Size of the key/value cache."""
    kv_blocks_free: int
    """Blocks that are free or can be evicted."""
    step_ms: float
    """One engine step."""
    plain_step_ms: float
    """What a step of the present batch would take without drafts; 0 where that is not known."""
    steps: int
    """Engine steps since the start."""
    tokens: int
    """Tokens committed or drafted since the start."""
    stale_drafts: int
    """Draft messages dropped since the start."""
    stale_epochs: int
    """Requests ended since the start because a later one had taken their session."""
    queue_wait_ms: float
    """Time a sequence waits for admission."""
    batch_occupancy: float
    """Share of the step that is in use, from 0 to 1."""
    draft_wait_ms: float
    """Time a round waits for its draft, or a draft for its turn."""

    @property
    def kv_use(self) -> float:
        """Share of the key/value cache that is held, from 0 to 1."""
        return 1 - self.kv_blocks_free / self.kv_blocks_total if self.kv_blocks_total else 0.0


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One process of the fleet."""

    address: str
    """Its gRPC target."""
    tier: Tier
    """Its half of the fleet."""
    pool: str
    """Its pool; empty where it was never reached."""
    state: State
    """What it can be given."""
    in_flight: int
    """Requests of the gateway that was asked on it or, of a drafter, drafted for by it."""
    identity: Identity | None = None
    """What it is, or was when last seen; None where it was never reached."""
    load: Load | None = None
    """Its last report; None while it is lost."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one drafter does for one verifier. Averages are 0 while nothing is known."""

    alive: bool
    """Whether their stream is up."""
    sessions: int
    """Sessions mirrored now."""
    rounds: int
    """Rounds that checked a draft."""
    drafted_tokens: int
    """Draft tokens that were checked."""
    accepted_tokens: int
    """Draft tokens that were committed."""
    acceptance: float
    """Share of recent draft tokens that were committed."""
    round_trip_ms: float
    """From an outcome told to the branch for it, less the drafting."""
    draft_ms: float
    """One draft token."""
    gain: float
    """Speed of its sessions over that of plain steps."""
    lane: str = ""
    """What rounds are told by: near (a socket of their machine), far (TCP) or none (gRPC alone);
    empty where that is not said."""

    @property
    def draft_tokens(self) -> float:
        """Mean length of a draft; 0 where there was none."""
        return self.drafted_tokens / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A verifier and a drafter."""

    verifier: str
    """The verifier's address."""
    drafter: str
    """The drafter's address."""
    misfit: str
    """Why they cannot work together; empty where they can."""
    offered: bool
    """Whether requests on this verifier are offered this drafter."""
    measured: Measured | None = None
    """None where they have not worked together."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers that are scaled together."""

    tier: Tier
    """Its tier."""
    name: str
    """Its name."""
    ready: int
    """Workers that are ready."""
    desired: int
    """Replicas that the present load calls for."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The whole fleet."""

    workers: tuple[Worker, ...] = ()
    """By tier, pool and address."""
    pairs: tuple[Pair, ...] = ()
    """All pairs that are known, fitting or not."""
    pools: tuple[Pool, ...] = ()
    """All pools that have a worker, or had one in the last hour."""
    at_s: float = field(default=0.0, compare=False)
    """When it came, by a clock that never goes back."""

    def of(self, tier: Tier, *states: State) -> list[Worker]:
        """Returns the workers of a tier, in any of some states; none named is all."""
        return [w for w in self.workers if w.tier is tier and (not states or w.state in states)]

    def worker(self, address: str) -> Worker | None:
        """Returns the worker at an address; None where none is listed."""
        return self._by_address.get(address)

    def pairs_of(self, worker: Worker) -> Sequence[Pair]:
        """Returns the pairs that a worker is part of."""
        return self._by_end.get((worker.tier, worker.address), ())

    # By what is asked for again and again: a thousand workers may make 250,000 pairs.

    @cached_property
    def _by_address(self) -> Mapping[str, Worker]:
        return {worker.address: worker for worker in self.workers}

    @cached_property
    def _by_end(self) -> Mapping[tuple[Tier, str], Sequence[Pair]]:
        found: defaultdict[tuple[Tier, str], list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            found[Tier.VERIFIER, pair.verifier].append(pair)
            found[Tier.DRAFTER, pair.drafter].append(pair)
        return found


def tokens_per_s(before: Snapshot, after: Snapshot) -> Mapping[str, float]:
    """Returns the speed of each worker that was seen twice, by address.

    A worker that started anew in between counts from 0 again, and is left out.
    """
    seconds = after.at_s - before.at_s
    rates: dict[str, float] = {}
    for worker in after.workers:
        old = before.worker(worker.address)
        if old is None or not (old.load and worker.load and old.identity and worker.identity):
            continue
        if old.identity.incarnation == worker.identity.incarnation and seconds > 0:
            rates[worker.address] = max(worker.load.tokens - old.load.tokens, 0) / seconds
    return rates
