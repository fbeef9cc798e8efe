"""A request's life in the gateway: check, encode, place, relay, complete."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from gateway.auth.caller import Caller
from gateway.bucket import Bucket
from gateway.config import FailoverConfig
from gateway.detokenizer import Detokenizer
from gateway.fleet import Fleet
from gateway.model import Model
from gateway.placement import Placement
from gateway.prompt_digest import check_digest, digest
from gateway.pursuit import Pursuit
from gateway.request import (
    Ask,
    Chunk,
    Complete,
    Event,
    FinishReason,
    Order,
    Speculation,
    Started,
)
from gateway.sessions import Sessions, Turn
from gateway.tally import Tally
from gateway.tokenizing import Tokenizing
from gateway.transcript import Transcript
from gateway.validation import check, check_ids, room

log = logging.getLogger(__name__)

CACHES = ("kept", "moved", "new")
"""What becomes of a session's cache; told before any comes: a rate would miss the first of each."""


class Generations:
    """Runs generations on a fleet.

    Args:
        fleet: The workers.
        sessions: Which verifier holds which session, and whose turn it is.
        failover: What happens where a verifier is lost.

    Attributes:
        tokenizing: What turns prompts into ids.
        moves: Times that another verifier, or the same one again, went on with a generation that is
            over.
        turns: Turns of sessions, by whether their cache was kept, moved or new.
    """

    def __init__(
        self, fleet: Fleet, sessions: Sessions, failover: FailoverConfig | None = None
    ) -> None:
        self._fleet = fleet
        self._sessions = sessions
        self._failover = failover or FailoverConfig()
        self._budget = Bucket(self._failover.retries_per_s, self._failover.retries_burst)
        self.tokenizing = Tokenizing()
        self.moves = 0
        self.turns = Counter(dict.fromkeys(CACHES, 0))

    @property
    def retries(self) -> int:
        """Times that a generation was tried again after a verifier failed it."""
        return self._budget.taken

    async def run(
        self, ask: Ask, caller: Caller, timeout_s: float
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Generates; closing the iterator ends the generation on the verifier.

        Args:
            ask: The request.
            caller: Whose.
            timeout_s: Seconds it may take.

        Yields:
            What happened, and goes as one message: `Started`, any number of `Chunk`, `Complete`.

        Raises:
            PacelineError: The request is wrong, or cannot be served.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        numerics = ask.resume.numerics if ask.resume is not None else None
        model = self._fleet.catalogue.resolve(ask.model, caller.models, numerics)
        check(ask, model)
        ids = await self.tokenizing.prompt_ids(ask.prompt, model.tokenizer, caller.tenant)
        check_ids(ask.prompt.field, ids, model.vocab_size)
        max_tokens = room(ask, len(ids), model)
        turn = await self._sessions.begin(ask.session_id, caller, model.name)
        placement = self._place(ask, model, turn, len(ids) + max_tokens)
        prompt_digest = digest(ids)
        # Only now: where nobody has the numerics that it began with, this may be another tokenizer.
        check_digest(ask.resume, prompt_digest)
        log.info("placed", extra=_facts(ask, placement, len(ids)))
        if turn.key:
            self.turns[_cache(turn, placement)] += 1
        with self._fleet.reserved(placement):
            yield (_started(ask, model, placement, len(ids), prompt_digest),)
        pursuit = Pursuit(
            self._fleet,
            model,
            _order(ask, turn, placement, ids, max_tokens),
            placement,
            ask.resume,
            config=self._failover,
            budget=self._budget,
            claim=partial(self._sessions.claim, turn),
        )
        try:
            async with aclosing(self._generate(ask, model, turn, pursuit, deadline)) as events:
                async for event in events:
                    yield event
        finally:
            self.moves += pursuit.moves

    def _place(self, ask: Ask, model: Model, turn: Turn, tokens: int) -> Placement:
        if ask.resume is None:
            return self._fleet.place(model, ask.method, turn.owner, tokens=tokens)
        numerics = ask.resume.numerics
        return self._fleet.go_on(model, ask.method, numerics, tokens=tokens, owner=turn.owner)

    async def _generate(
        self, ask: Ask, model: Model, turn: Turn, pursuit: Pursuit, deadline: float
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        detokenizer = Detokenizer(model.tokenizer) if model.tokenizer else None
        transcript = Transcript(detokenizer, ask.stop)
        if ask.resume is not None:
            with self._fleet.reserved(pursuit.placement):
                await transcript.replay(ask.resume)

        def ended(told: Complete | None) -> Complete | None:
            stop = transcript.stop
            return told if stop is None else pursuit.stopped(transcript.tokens, stop)

        chunk, end = Chunk(), ended(None)
        async with aclosing(pursuit.run(deadline)) as messages:
            while end is None:
                message = await anext(messages)
                chunk = transcript.feed(message.ids, message.sources)
                end = ended(message.end)
                if end is None:
                    yield (_totalled(chunk, pursuit.tally),)
        if rest := transcript.finish():
            if chunk.ids:
                yield (_totalled(chunk, end.speculation),)
            chunk = Chunk(rest)
        if transcript.stop is not None and not end.stop:  # completed by text held to the end
            end = replace(end, finish_reason=FinishReason.STOP, stop=transcript.stop)
        self._sessions.end(turn, pursuit.placement)
        log.info("complete", extra=_results(ask, end))
        chunk = _totalled(chunk, end.speculation)
        yield (chunk, end) if chunk.ids or chunk.text else (end,)


def _started(
    ask: Ask, model: Model, placement: Placement, prompt_tokens: int, prompt_digest: bytes
) -> Started:
    return Started(
        request_id=ask.request_id,
        model=model.name,
        seed=ask.sampling.seed,
        prompt_tokens=prompt_tokens,
        numerics=placement.numerics,
        resumed_tokens=len(ask.resume.ids) if ask.resume else 0,
        prompt_digest=prompt_digest,
        prompt_time_s=ask.prompt.time_s or 0,
    )


def _order(
    ask: Ask, turn: Turn, placement: Placement, ids: Sequence[int], max_tokens: int
) -> Order:
    return Order(
        request_id=ask.request_id,
        prompt_ids=ids,
        max_tokens=max_tokens,
        sampling=ask.sampling,
        method=placement.method,
        draft_tokens=ask.draft_tokens,
        lookahead=ask.lookahead,
        acceptance=ask.acceptance,
        stop_token_ids=ask.stop_token_ids,
        ignore_eos=ask.ignore_eos,
        drafters=placement.drafters,
        session=turn.key,
        epoch=turn.epoch,
        cache_salt=turn.cache_salt,
    )


def _totalled(chunk: Chunk, so_far: Tally | Speculation) -> Chunk:
    return replace(chunk, rounds=so_far.rounds, drafted_tokens=so_far.drafted_tokens)


def _cache(turn: Turn, placement: Placement) -> str:
    """What becomes of a session's cache."""
    if turn.owner is None:
        return "new"
    return "kept" if turn.owner == placement.verifier else "moved"


def _facts(ask: Ask, placement: Placement, prompt_tokens: int) -> dict[str, object]:
    return {
        "request": ask.request_id,
        "verifier": placement.verifier,
        "drafters": placement.drafters,
        "method": placement.method,
        "prompt_tokens": prompt_tokens,
    }


def _results(ask: Ask, end: Complete) -> dict[str, object]:
    return {
        "request": ask.request_id,
        "finish_reason": FinishReason(end.finish_reason).name.lower(),
        "completion_tokens": end.usage.completion_tokens,
        "rounds": end.speculation.rounds,
        "accepted_tokens": end.speculation.accepted_tokens,
    }
