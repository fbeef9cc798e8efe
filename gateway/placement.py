"""Which verifier and which drafters serve a request: pure functions over what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from common.drafters import MOST_DRAFTERS, misfit
from common.errors import FailedPrecondition, Unavailable
from gateway.candidate import Candidate
from gateway.gain import Gains, Worth, fitting, forgotten, ranked, untried

EXPLORE_EVERY = 8
"""Of so many requests of a verifier that may draft, one tries a drafter that has not been
measured."""

RETRY_EVERY = 4
"""Of so many such requests, one may try a drafter again that was left out: what is slow at that
is slow for long."""


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


def alike(verifiers: Sequence[Candidate], loaded: Collection[str]) -> list[Candidate]:
    """Returns, of the verifiers of one name, those to which the same ids mean the same.

    Where there are several kinds, it is one whose tokenizer is loaded, then the one that most of
    those that are ready belong to; the same one for every gateway, in whatever order it found them.

    Args:
        verifiers: All verifiers of the name; at least one.
        loaded: Fingerprints of the tokenizers that are loaded.
    """
    kinds = {each.description.vocabulary for each in verifiers}
    if len(kinds) == 1:
        return list(verifiers)
    ready = Counter(each.description.vocabulary for each in verifiers if each.available)
    chosen = max(kinds, key=lambda kind: (kind[0] in loaded, ready[kind], kind))
    return [each for each in verifiers if each.description.vocabulary == chosen]


def offered_methods(
    verifiers: Sequence[Candidate], drafters: Sequence[Candidate]
) -> tuple[str, ...]:
    """Returns the methods that one model's verifiers can run, in the verifiers' order.

    Who is not there for a moment takes no method away: what lost drafters would draft for goes on
    without, and what lost verifiers alone run is worth another try.
    """
    methods: dict[str, None] = {}
    drafters = _kinds(drafters)
    for verifier in verifiers:
        known = verifier.description.methods
        methods |= {m: None for m in known if m != "draft" or _has_drafter(verifier, drafters)}
    return tuple(methods)


def place(
    method: str,
    verifiers: Sequence[Candidate],
    drafters: Sequence[Candidate],
    owner: str | None = None,
    shunned: Collection[str] = (),
    turn: Callable[[str], int] = lambda verifier: 0,
    tokens: int = 0,
    away: Sequence[Candidate] = (),
    gains: Gains | None = None,
) -> Placement:
    """Chooses the verifier with the least expected wait, and its drafters by what they gain.

    Args:
        method: The method asked for; a known one.
        verifiers: All verifiers of the model to which the request's ids mean the same.
        drafters: All drafters, those of late too: which methods there are does not change while
            some are being replaced.
        owner: Address of the verifier that holds the session's cache; preferred where it can
            serve the request and is not late.
        shunned: Addresses of verifiers that have just failed the request; the last resort.
        turn: Asked, where the request may draft, for its number among those of the verifier
            chosen; decides whether it tries an unmeasured drafter.
        tokens: Of prompt and output, at most; who takes fewer is left out.
        away: Such verifiers as were there of late, as if they were lost.
        gains: Of the model's verifiers; None finds out.

    Raises:
        Unavailable: No verifier of the model is available, or none that takes so many tokens or
            runs the method.
        FailedPrecondition: The verifiers cannot run the method, nor could those of late.
    """
    able = _able(method, verifiers, drafters, tokens, away)

    def preference(each: Candidate) -> tuple[bool, bool, bool, float, int]:
        shun, own = each.address in shunned, each.address == owner
        return shun, each.late, not own, each.expected_wait_ms, each.in_flight

    chosen = min(able, key=preference)
    offered = []
    if _may_draft(method, chosen):
        known, number = gains or Gains(verifiers, drafters), turn(chosen.address)
        offered = offer(chosen, drafters, known, number, named=method != "auto")
    return Placement(
        verifier=chosen.address,
        drafters=tuple(drafter.address for drafter in offered),
        method=method,
        numerics=chosen.description.numerics_fingerprint,
    )


def offer(
    verifier: Candidate,
    drafters: Sequence[Candidate],
    gains: Gains,
    turn: int = 0,
    *,
    named: bool = False,
) -> list[Candidate]:
    """Orders the drafters for a verifier's next session, best first and late ones last; see
    `gateway.gain`.

    Args:
        verifier: An available one.
        drafters: All drafters.
        gains: Of the verifiers of its model.
        turn: Number of the session. Every so often a drafter comes first that has not been
            measured with this verifier, or not since it was left out.
        named: Whether drafting was asked for by name: then the best drafter is offered though
            none helps.
    """
    worths = gains.worths(verifier, fitting(verifier, drafters))
    order = ranked(worths)
    if not order and named and worths:
        order = [max(worths, key=lambda worth: worth.gain)]
    first = _trial(worths, order, turn)
    if first is not None:
        order = [first, *(worth for worth in order if worth is not first)]
    order.sort(key=lambda worth: worth.drafter.late)
    return [worth.drafter for worth in order[:MOST_DRAFTERS]]


def _trial(worths: Sequence[Worth], order: Sequence[Worth], turn: int) -> Worth | None:
    """Returns the drafter that a request is to try, each in turn; most try none."""
    trial, rest = divmod(turn, EXPLORE_EVERY)
    if rest != EXPLORE_EVERY - 1:
        return None
    again, rest = divmod(trial, RETRY_EVERY)
    if rest == RETRY_EVERY - 1 and (left_out := forgotten(worths, order)):
        return left_out[again % len(left_out)]
    unknown = untried(worths)
    return unknown[trial % len(unknown)] if unknown else None


def _able(
    method: str,
    verifiers: Sequence[Candidate],
    drafters: Sequence[Candidate],
    tokens: int,
    away: Sequence[Candidate],
) -> list[Candidate]:
    """The available verifiers that can serve a request, at least one; see `place`."""
    if not any(verifier.available for verifier in verifiers):
        addresses = ", ".join(verifier.address for verifier in verifiers)
        raise Unavailable(f"no verifier is available: {addresses or 'none of these numerics'}")
    # Whoever is away may not take so many: as it comes back the model's limit falls to its own.
    known = [*(v for v in verifiers if v.description.max_model_len >= tokens), *away]
    if not any(verifier.available for verifier in known):
        raise Unavailable(f"no verifier is available that takes {tokens} tokens")
    kinds = _kinds(drafters)
    runners = [v for v in known if _runs(method, v, kinds)]
    if not runners:
        raise FailedPrecondition(_lacking(method, known, drafters))
    able = [v for v in runners if v.available]
    if not able:
        raise Unavailable(f"no verifier that runs {method} is available")
    return able


def _runs(method: str, verifier: Candidate, drafters: Sequence[Candidate]) -> bool:
    if method == "auto":
        return True
    parts = method.split("+")
    known = all(part in verifier.description.methods for part in parts)
    return known and ("draft" not in parts or _has_drafter(verifier, drafters))


def _kinds(drafters: Sequence[Candidate]) -> list[Candidate]:
    """One drafter of each vocabulary: the others fit the same verifiers."""
    return list({each.description.vocabulary: each for each in drafters}.values())


def _has_drafter(verifier: Candidate, drafters: Sequence[Candidate]) -> bool:
    known = verifier.description
    return any(misfit(known, drafter.description) is None for drafter in drafters)


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
    if not drafters:
        return f"{message}: no drafter is configured"
    reasons = {misfit(verifiers[0].description, drafter.description) for drafter in drafters}
    if None in reasons:  # it lacks something else
        return message
    return f"{message}: no drafter fits: {'; '.join(sorted(filter(None, reasons)))}"
