"""Workers as the gateway might know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.candidate import Candidate, Description, Load, Measured

DESCRIPTION = Description(
    incarnation=1,
    model="m",
    tokenizer_fingerprint="f",
    numerics_fingerprint="n",
    vocab_size=100,
    max_model_len=64,
    methods=("plain", "draft"),
    eos_token_ids=(2,),
)


def worker(address: str, *, lost: bool = False, **facts: Any) -> Candidate:
    """A worker, by what it says of itself and of its load."""
    told = {name: facts.pop(name) for name in vars(DESCRIPTION).keys() & facts.keys()}
    known = {name: facts.pop(name) for name in ("in_flight", "broken", "late") if name in facts}
    load = {"accepting": True, "running": 0, "waiting": 0, "step_ms": 0.0} | facts
    return Candidate(
        address=address,
        description=replace(DESCRIPTION, **told),
        load=None if lost else Load(**load),
        **known,
    )


def verifier(address: str = "v", *, step_ms: float = 30.0, **facts: Any) -> Candidate:
    """A verifier whose step is known."""
    return worker(address, step_ms=step_ms, plain_step_ms=step_ms, **facts)


def drafter(address: str, *, step_ms: float = 3.0, **facts: Any) -> Candidate:
    """A drafter whose step is known."""
    return worker(address, model="small", step_ms=step_ms, **facts)


def measured(gain: float = 2.0, rounds: int = 1000, **more: Any) -> Measured:
    """A pair that is well known."""
    facts = {
        "sessions": 1,
        "drafted_tokens": 4 * rounds,
        "length": 4.0,
        "acceptance": 0.8,
        "draft_ms": 3.0,
        "round_trip_ms": 1.0,
    }
    return Measured(gain=gain, rounds=rounds, **(facts | more))
