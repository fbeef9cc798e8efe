"""Spans of a request's rounds, made from the times that the engine noted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from common.telemetry.span import Span, Value
from verifier.round_times import RoundTimes
from verifier.sequence import Event, Request

_PARTS = ("draft", "wire", "queue", "verify", "commit")


class RoundSpans:
    """Adds a share of the rounds to a request's span, the first one always.

    Args:
        span: The request's.
        ratio: Share of rounds, from 0 to 1.
    """

    def __init__(self, span: Span, ratio: float) -> None:
        self.wanted = span.recording and ratio > 0
        """Whether the engine is to note times."""
        self._span, self._ratio = span, ratio
        self._rounds = 0

    def add(self, events: Sequence[Event]) -> None:
        """Takes the engine's news."""
        if not self.wanted:
            return
        for times in (event.times for event in events if event.times is not None):
            self._rounds += 1
            if self._rounds == 1 or random.random() < self._ratio:
                self._add(times)

    def _add(self, times: RoundTimes) -> None:
        attributes = {
            "paceline.round": self._rounds,
            "paceline.drafted_tokens": times.drafted,
            "paceline.accepted_tokens": times.accepted,
        }
        round_ = self._span.child("round", times.began_s, times.committed_s, attributes)
        ends = (
            times.began_s,
            times.sent_s,
            times.ready_s,
            times.started_s,
            times.verified_s,
            times.committed_s,
        )
        for name, (began_s, ended_s) in zip(_PARTS, pairwise(ends), strict=True):
            if ended_s > began_s:
                round_.child(name, began_s, ended_s, {})


def results(request: Request, last: Event, output_tokens: int) -> dict[str, Value]:
    """Attributes of a request that has ended, by the last that was heard of it."""
    if (counts := last.counts) is None:
        return {}
    finish: dict[str, Value] = {}
    if last.finish is not None:
        finish["gen_ai.response.finish_reasons"] = [last.finish.value]
    return finish | {
        "gen_ai.usage.input_tokens": len(request.prompt_ids),
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.usage.cache_read.input_tokens": counts.cached_tokens,
        "paceline.method": counts.method,
        "paceline.acceptance": request.acceptance,
        "paceline.rounds": counts.rounds,
        "paceline.drafted_tokens": counts.drafted_tokens,
        "paceline.accepted_tokens": counts.accepted_tokens,
    }
