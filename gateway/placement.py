"""Which verifier and which drafters serve a request: pure functions over what is known of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from common.errors import FailedPrecondition, Unavailable

# A worker that has not run a step yet reports 0 ms; requests sent to it still have to count.
_LEAST_STEP_MS = 0.1

MOST_DRAFTERS = 8
"""Drafters offered to a verifier for one request; it takes no more."""


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


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy a worker is. Fields as in `WatchStatusResponse`."""

    accepting: bool
    running: int
    waiting: int
    step_ms: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that was reachable at some time.

    Attributes:
        address: Where it listens.
        description: What it is, or was when last seen.
        load: Its load, or None while it is lost.
        in_flight: This gateway's own requests on it; its load lags behind them.
        broken: Whether it failed too many requests of late; see `gateway.breaker`.
    """

    address: str
    description: Description
    load: Load | None
    in_flight: int = 0
    broken: bool = False

    @property
    def available(self) -> bool:
        """Whether new requests may be sent to it."""
        return self.load is not None and self.load.accepting and not self.broken

    @property
    def expected_wait_ms(self) -> float:
        """Sequences ahead of a new one times the duration of a step."""
        assert self.load is not None
        ahead = max(self.load.waiting + self.load.running, self.in_flight)
        return ahead * max(self.load.step_ms, _LEAST_STEP_MS)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a request goes.

    Attributes:
        verifier: Address of the verifier.
        drafters: Addresses of fitting drafters, best first; empty unless the method drafts.
        method: The method asked for.
        numerics: The verifier's numerics fingerprint: only one with the same can go on with what
            it began.
    """

    verifier: str
    drafters: tuple[str, ...]
    method: str
    numerics: str


def misfit(verifier: Description, drafter: Description) -> str | None:
    """Says why a drafter's tokens mean nothing to a verifier, or None where the pair fits.

    Equal vocabulary sizes are not enough: the same ids must stand for the same text.
    """
    if drafter.tokenizer_fingerprint != verifier.tokenizer_fingerprint:
        return "its tokenizer differs from the target's"
    if drafter.vocab_size != verifier.vocab_size:
        return f"its vocabulary has {drafter.vocab_size} ids, the target's {verifier.vocab_size}"
    return None


def offered_methods(
    verifiers: Sequence[Candidate], drafters: Sequence[Candidate]
) -> tuple[str, ...]:
    """Returns the methods that one model's verifiers can run now, in the verifiers' order."""
    methods: dict[str, None] = {}
    for verifier in verifiers:
        has_drafter = bool(_fitting(verifier, drafters))
        methods |= {m: None for m in verifier.description.methods if m != "draft" or has_drafter}
    return tuple(methods)


def place(
    method: str,
    verifiers: Sequence[Candidate],
    drafters: Sequence[Candidate],
    owner: str | None = None,
    shunned: Collection[str] = (),
) -> Placement:
    """Chooses the verifier with the least expected wait, and its drafters.

    Args:
        method: The method asked for; a known one.
        verifiers: All verifiers of the model.
        drafters: All drafters.
        owner: Address of the verifier that holds the session's cache; preferred where it can
            serve the request.
        shunned: Addresses of verifiers that have just failed the request; the last resort.

    Raises:
        Unavailable: No verifier of the model is reachable.
        FailedPrecondition: The verifiers cannot run the method.
    """
    available = [verifier for verifier in verifiers if verifier.available]
    if not available:
        addresses = ", ".join(verifier.address for verifier in verifiers)
        raise Unavailable(f"no verifier is reachable: {addresses or 'none of these numerics'}")
    able = [v for v in available if _runs(method, offered_methods([v], drafters))]
    if not able:
        raise FailedPrecondition(_lacking(method, available, drafters))

    def preference(each: Candidate) -> tuple[bool, bool, float, int]:
        shun, own = each.address in shunned, each.address == owner
        return shun, not own, each.expected_wait_ms, each.in_flight

    chosen = min(able, key=preference)
    fitting = _fitting(chosen, drafters) if _may_draft(method, chosen) else []
    offered = tuple(drafter.address for drafter in fitting[:MOST_DRAFTERS])
    return Placement(
        verifier=chosen.address,
        drafters=offered,
        method=method,
        numerics=chosen.description.numerics_fingerprint,
    )


def _fitting(verifier: Candidate, drafters: Sequence[Candidate]) -> list[Candidate]:
    fitting = [
        drafter
        for drafter in drafters
        if drafter.available and misfit(verifier.description, drafter.description) is None
    ]
    return sorted(fitting, key=lambda drafter: drafter.expected_wait_ms)


def _runs(method: str, offered: Sequence[str]) -> bool:
    return method == "auto" or all(part in offered for part in method.split("+"))


def _may_draft(method: str, verifier: Candidate) -> bool:
    """Whether drafters are of use; what "auto" is, the verifier decides."""
    if method == "auto":
        return "draft" in verifier.description.methods
    return "draft" in method.split("+")


def _lacking(method: str, verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> str:
    offered = ", ".join(("auto", *offered_methods(verifiers, drafters)))
    message = f"speculation.method: this deployment has {offered}; it cannot run {method}"
    if "draft" not in method.split("+") or not any(
        "draft" in verifier.description.methods for verifier in verifiers
    ):
        return message
    reasons = [_absence(verifiers[0], drafter) for drafter in drafters]
    return f"{message}: " + ("; ".join(reasons) or "no drafter is configured")


def _absence(verifier: Candidate, drafter: Candidate) -> str:
    reason = misfit(verifier.description, drafter.description)
    return (
        f"drafter {drafter.address} {'does not fit: ' + reason if reason else 'is not reachable'}"
    )
