"""Measurements with figures of our own choice."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import Result, Speculation, Usage

from bench.measurement import Pass, Sample
from launcher.timing import Timed


def sample(
    tokens: int,
    seconds: float,
    ids: Sequence[int] = (),
    speculation: Speculation | None = None,
) -> Sample:
    return Sample(ids=tuple(ids), tokens=tokens, seconds=seconds, speculation=speculation)


def one_pass(*samples: Sample) -> Pass:
    return Pass.of(samples)


def speculation(rounds: int, drafted: int, accepted: int) -> Speculation:
    return Speculation("draft", "coupled", rounds, drafted, accepted, (), 0.0, 0.0, lossy=False)


def run(
    tokens: int, seconds: float, rounds: int, drafted: int = 0, accepted: int = 0, *, id_: int = 0
) -> Timed:
    """A generation of one token again and again, timed after the first."""
    result = Result(
        text="",
        token_ids=(id_,) * tokens,
        finish_reason="length",
        stop=None,
        usage=Usage(1, tokens, 0),
        speculation=speculation(rounds, drafted, accepted),
        seed=0,
        request_id="",
        model="",
    )
    return Timed(result=result, decoded_tokens=tokens - 1, seconds=seconds)
