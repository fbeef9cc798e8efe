"""Measurements with figures of our own choice."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import Speculation

from bench.measurement import Pass, Sample


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
