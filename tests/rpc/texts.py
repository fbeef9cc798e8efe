"""A scripted verifier that keeps the promise: each id follows from seed and position alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from paceline.v1 import types_pb2, verifier_pb2

from common.errors import PacelineError, Unavailable
from tests.scripted_workers import ScriptedWorker

A, R, B = (
    types_pb2.TOKEN_SOURCE_ACCEPTED,
    types_pb2.TOKEN_SOURCE_RECOVERED,
    types_pb2.TOKEN_SOURCE_BONUS,
)
EOS = 2

# One round each: how many of two draft tokens are accepted.
ROUNDS = (0, 2, 1, 2, 0, 1)


def token(seed: int, position: int) -> int:
    """The id at an absolute position; never an end token."""
    return 10 + (seed * 31 + position * position * 7) % 3000


def text(seed: int, prompt: Sequence[int], tokens: int) -> list[int]:
    """What every verifier writes."""
    return [token(seed, len(prompt) + at) for at in range(tokens)]


class KeyedVerifier(ScriptedWorker):
    """Writes `text`, one round a message, until it is told to fail.

    Attributes:
        fails_after: Tokens of each generation after which `failure` is raised; None never.
        failure: What is raised then; None hangs until `resumed` is set.
        cached: Prompt tokens it says it had cached.
        pace_s: Time a round takes.
    """

    def __init__(self, **description: Any) -> None:
        super().__init__(**description)
        self.fails_after: int | None = None
        self.failure: PacelineError | None = Unavailable("the power went")
        self.cached = 0
        self.ran = ""
        """The method it says it ran."""
        self.pace_s = 0.0
        self.ends_at: int | None = None
        """Position at which the text ends by itself."""
        self.refused = asyncio.Event()
        """Set by a request that was meant for other numerics."""
        self.failing = asyncio.Event()
        self.resumed = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> None:
        if request.numerics_fingerprint != self.description.numerics_fingerprint:
            self.refused.set()
            raise Unavailable("other numerics are served here")
        self.requests.append(request)
        prompt, counts = len(request.prompt_ids), types_pb2.SpeculationStats()
        sent = 0
        while sent < request.max_tokens:
            if self.fails_after is not None and sent >= self.fails_after:
                await self._fail()
            await asyncio.sleep(self.pace_s)
            ids, sources = self._round(request, prompt + sent, request.max_tokens - sent)
            counts.rounds += 1
            counts.drafted_tokens += 2
            counts.accepted_tokens += sources.count(A)
            for depth in range(sources.count(A)):
                if depth == len(counts.accepted_per_position):
                    counts.accepted_per_position.append(0)
                counts.accepted_per_position[depth] += 1
            sent += len(ids)
            tokens = verifier_pb2.CommittedTokens(
                ids=ids,
                sources=sources,
                rounds=counts.rounds,
                drafted_tokens=counts.drafted_tokens,
                cached_tokens=self.cached,
                method=self.ran,
            )
            await context.write(verifier_pb2.VerifierGenerateResponse(tokens=tokens))
            if ids[-1] == EOS and not request.ignore_eos:
                break
        if self.fails_after is not None and sent >= self.fails_after:
            await self._fail()
        ended = types_pb2.FINISH_REASON_STOP if ids[-1] == EOS else types_pb2.FINISH_REASON_LENGTH
        complete = verifier_pb2.VerifierComplete(
            finish_reason=ended,
            usage=types_pb2.Usage(
                prompt_tokens=prompt, completion_tokens=sent, cached_tokens=self.cached
            ),
            speculation=counts,
        )
        await context.write(verifier_pb2.VerifierGenerateResponse(complete=complete))

    def _round(self, request: Any, position: int, room: int) -> tuple[list[int], list[int]]:
        accepted = ROUNDS[position % len(ROUNDS)]
        sources = ([A] * accepted + [B if accepted == 2 else R])[:room]
        ids = []
        for at in range(position, position + len(sources)):
            ids.append(EOS if at == self.ends_at else token(request.sampling.seed, at))
            if ids[-1] == EOS and not request.ignore_eos:
                break
        return ids, sources[: len(ids)]

    async def _fail(self) -> None:
        self.failing.set()
        if self.failure is not None:
            raise self.failure
        await self.resumed.wait()
