"""A request's life in the gateway: check, encode, place, relay, complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from common.store.sessions import SessionRecord, SessionStore
from gateway.detokenizer import Detokenizer
from gateway.fleet import Fleet, Model
from gateway.placement import Placement
from gateway.relay import relay
from gateway.request import (
    Ask,
    Chunk,
    Complete,
    Event,
    FinishReason,
    Order,
    Started,
    Usage,
)
from gateway.tally import Tally
from gateway.tokenizing import prompt_ids
from gateway.transcript import Transcript
from gateway.validation import check, room

log = logging.getLogger(__name__)


class Generations:
    """Runs generations on a fleet.

    Args:
        fleet: The workers.
        sessions: Which verifier holds which session.
    """

    def __init__(self, fleet: Fleet, sessions: SessionStore) -> None:
        self._fleet = fleet
        self._sessions = sessions

    async def run(self, ask: Ask, timeout_s: float) -> AsyncGenerator[Event, None]:
        """Generates; closing the iterator ends the generation on the verifier.

        Args:
            ask: The request.
            timeout_s: Seconds it may take.

        Yields:
            `Started`, any number of `Chunk`, `Complete`.

        Raises:
            PacelineError: The request is wrong, or cannot be served.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        model = self._fleet.resolve(ask.model)
        check(ask, model)
        ids = await prompt_ids(ask.prompt, model.tokenizer)
        max_tokens = room(ask, len(ids), model)
        owner = await self._owner(ask, model)
        placement = self._fleet.place(model.name, ask.method, owner)
        log.info("placed", extra=_facts(ask, placement, len(ids)))
        yield Started(
            request_id=ask.request_id,
            model=model.name,
            seed=ask.sampling.seed,
            prompt_tokens=len(ids),
        )
        order = _order(ask, placement, ids, max_tokens)
        left_s = deadline - loop.time()
        async with aclosing(self._generate(ask, model, placement, order, left_s)) as events:
            async for event in events:
                yield event

    async def _generate(
        self, ask: Ask, model: Model, placement: Placement, order: Order, timeout_s: float
    ) -> AsyncGenerator[Event, None]:
        detokenizer = Detokenizer(model.tokenizer) if model.tokenizer else None
        transcript, tally = Transcript(detokenizer, ask.stop), Tally()
        verifier = self._fleet.verifier(placement.verifier)
        with verifier.in_flight():
            async with aclosing(relay(verifier, order, timeout_s)) as messages:
                async for message in messages:
                    if isinstance(message, Complete):
                        end = message
                        break
                    tally.add(message)
                    yield transcript.feed(message.ids, message.sources)
                    if transcript.stop is not None:
                        end = _stopped(transcript, tally, order)
                        break
        if rest := transcript.finish():
            yield Chunk(rest, (), (), ())
        if transcript.stop is not None and not end.stop:  # completed by text held to the end
            end = replace(end, finish_reason=FinishReason.STOP, stop=transcript.stop)
        self._remember(ask, model, placement)
        log.info("complete", extra=_results(ask, end))
        yield end

    async def _owner(self, ask: Ask, model: Model) -> str | None:
        if not ask.session_id:
            return None
        record = await self._sessions.get(ask.session_id)
        return record.owner if record is not None and record.model == model.name else None

    def _remember(self, ask: Ask, model: Model, placement: Placement) -> None:
        if ask.session_id:
            record = SessionRecord(owner=placement.verifier, model=model.name)
            self._sessions.put_soon(ask.session_id, record)


def _order(ask: Ask, placement: Placement, ids: Sequence[int], max_tokens: int) -> Order:
    return Order(
        request_id=ask.request_id,
        prompt_ids=ids,
        max_tokens=max_tokens,
        sampling=ask.sampling,
        method=placement.method,
        draft_tokens=ask.draft_tokens,
        acceptance=ask.acceptance,
        stop_token_ids=ask.stop_token_ids,
        ignore_eos=ask.ignore_eos,
        drafters=placement.drafters,
    )


def _stopped(transcript: Transcript, tally: Tally, order: Order) -> Complete:
    """Ends at a stop string, where the verifier's own report is lost with its stream."""
    assert transcript.stop is not None
    return Complete(
        finish_reason=FinishReason.STOP,
        usage=Usage(
            prompt_tokens=len(order.prompt_ids),
            completion_tokens=transcript.tokens,
            cached_tokens=tally.cached_tokens,
        ),
        speculation=tally.speculation(order),
        stop=transcript.stop,
    )


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
