"""Workers as the gateway knows them at one moment: the ground of placement and of pool sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Of a worker that knows no step at all; requests sent to it still have to count.
_LEAST_STEP_MS = 0.1


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a worker is; constant over its life. Fields as in `DescribeResponse`."""

    incarnation: int
    model: str
    tokenizer_fingerprint: str
    numerics_fingerprint: str
    vocab_size: int
    max_model_len: int
    methods: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    pool: str = ""

    @property
    def vocabulary(self) -> tuple[str, int]:
        """What its token ids mean: only verifiers of which this is the same serve together; for
        drafters see `common.drafters`."""
        return self.tokenizer_fingerprint, self.vocab_size


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a verifier says of one of its drafters.

    Attributes:
        sessions: Sessions the drafter mirrors for it.
        rounds: Rounds that checked a draft.
        drafted_tokens: Draft tokens checked.
        length: Mean length of recent drafts.
        acceptance: Chance that a draft token is right where those before it were; 0 while unknown.
        round_trip_ms: From an outcome told to the branch for it, less the drafting.
        draft_ms: One draft token; 0 while unknown.
        gain: Tokens in a second over what plain steps would have given; 0 while unknown.
        quiet_s: Seconds without news of it.
    """

    sessions: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    length: float = 0.0
    acceptance: float = 0.0
    round_trip_ms: float = 0.0
    draft_ms: float = 0.0
    gain: float = 0.0
    quiet_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy a worker is. Fields as in `WatchStatusResponse`, but for these.

    Attributes:
        busy: Share of the time in which it computed, from 0 to 1; None while unknown.
        pairs: A verifier's drafters, by address.
    """

    accepting: bool
    running: int
    waiting: int
    step_ms: float
    queue_wait_ms: float = 0.0
    batch_occupancy: float = 0.0
    plain_step_ms: float = 0.0
    busy: float | None = None
    pairs: Mapping[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that was reachable at some time.

    Attributes:
        address: Where it listens.
        description: What it is, or was when last seen.
        load: Its load, or None while it is lost.
        in_flight: This gateway's own requests on it, or drafted for by it; its load lags behind
            them.
        broken: Whether it failed too many requests of late; see `gateway.breaker`.
        late: Whether its reports have stopped coming: a worker from which none comes for longer
            is lost.
    """

    address: str
    description: Description
    load: Load | None
    in_flight: int = 0
    broken: bool = False
    late: bool = False

    @property
    def available(self) -> bool:
        """Whether new requests may be sent to it."""
        return self.load is not None and self.load.accepting and not self.broken

    @property
    def sequences(self) -> int:
        """Sequences on it, those included that its load does not show yet."""
        assert self.load is not None
        return max(self.load.waiting + self.load.running, self.in_flight)

    @property
    def sessions(self) -> int:
        """Sessions a drafter mirrors, those included that its load does not show yet."""
        assert self.load is not None
        return max(self.load.running, self.in_flight)

    @property
    def expected_wait_ms(self) -> float:
        """Sequences ahead of a new one times the duration of a step.

        Who has just joined has run none yet, but knows what a plain one would take.
        """
        assert self.load is not None
        step_ms = self.load.step_ms or self.load.plain_step_ms
        return self.sequences * max(step_ms, _LEAST_STEP_MS)
