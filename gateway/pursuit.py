"""One generation, on as many verifiers as it takes.

A generation is a pure function of prompt, sampling and seed, and its noise is keyed by absolute
position. So where a verifier is lost, another one with the same model and numerics goes on with
exactly the same text, given the prompt and the ids that were streamed already. Nothing is
streamed twice and nothing is left out: what counts as streamed is what left this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from common.errors import PacelineError, ResourceExhausted, Unavailable
from gateway.backoff import Backoff
from gateway.bucket import Bucket
from gateway.config import FailoverConfig
from gateway.fleet import Fleet
from gateway.model import Model
from gateway.placement import Placement
from gateway.relay import relay
from gateway.request import Committed, Complete, FinishReason, Order, Resume, Usage
from gateway.tally import Tally
from gateway.verdict import Verdict

log = logging.getLogger(__name__)

# Before the first retry; doubled for each further one without progress, and all of it left to
# chance. Enough to spread the generations of a lost verifier over some steps of the next one.
_FIRST_PAUSE_S = 0.05
_MOST_PAUSE_S = 1.0


class Pursuit:
    """Runs one order.

    Args:
        fleet: The workers.
        model: The order's model.
        order: The whole generation.
        placement: Where it begins.
        resume: What the client has of it already.
        config: How long to go on trying.
        budget: Of retries, shared by all generations.
        claim: Awaited with each placement before anything runs there; may refuse it.

    Attributes:
        placement: Where it runs now.
        tally: What was done so far.
        moves: How often another verifier, or the same one again, went on.
    """

    def __init__(
        self,
        fleet: Fleet,
        model: Model,
        order: Order,
        placement: Placement,
        resume: Resume | None = None,
        *,
        config: FailoverConfig,
        budget: Bucket,
        claim: Callable[[Placement], Awaitable[None]],
    ) -> None:
        self.placement = placement
        self.tally = Tally()
        self.moves = 0
        self._fleet, self._model, self._order = fleet, model, order
        self._config, self._budget, self._claim = config, budget, claim
        self._ids = list(resume.ids) if resume else []
        self._moved = resume is not None
        self._shunned: set[str] = set()
        self._failures = 0  # since the last token
        self._backoff = Backoff(_FIRST_PAUSE_S, _MOST_PAUSE_S, jitter=1.0)
        self._give_up = 0.0
        self._verdict = Verdict()
        if resume is not None:
            self.tally.resume(resume)

    async def run(self, deadline: float) -> AsyncGenerator[Committed, None]:
        """Generates; closing the iterator ends it on the verifier.

        Args:
            deadline: When its time is up, on the event loop's clock.

        Yields:
            Committed tokens; the last with how it ended, with the numbers of all verifiers.

        Raises:
            PacelineError: A verifier refused, or none is left.
        """
        loop = asyncio.get_running_loop()
        while (end := self._end()) is None:
            try:
                with self._fleet.reserved(self.placement):
                    await self._claim(self.placement)
                # Only after that wait: who has left meanwhile cannot be called.
                verifier = self._fleet.verifier(self.placement.verifier)
                breaker = verifier.breaker
                messages = relay(verifier, self._rest(), deadline - loop.time())
                with self._fleet.paired(self.placement):
                    async with aclosing(messages):
                        async for message in messages:
                            self._take(message)
                            if message.end is not None:
                                yield replace(message, end=self._whole(message.end))
                                return
                            yield message
            except PacelineError as error:
                if _internal(error) and not self._verdict.accuse(breaker):
                    raise
                await self._move(error, deadline)
        yield Committed(end=end)

    def stopped(self, completion_tokens: int, stop: str) -> Complete:
        """How it ended where a stop string did it: the verifier's own report is never read then.

        Args:
            completion_tokens: Tokens up to the end of the stop string.
            stop: The stop string.
        """
        return self._report(FinishReason.STOP, completion_tokens, stop)

    def _take(self, message: Committed) -> None:
        self._failures = 0
        self._backoff.reset()
        self._shunned.clear()
        self._verdict.convict()
        if message.ids:
            self._ids.extend(message.ids)
            self.tally.add(message)

    def _rest(self) -> Order:
        """What is still to be done, for a verifier that knows nothing of what was."""
        return replace(
            self._order,
            prompt_ids=[*self._order.prompt_ids, *self._ids],
            max_tokens=self._order.max_tokens - len(self._ids),
            method=self.placement.method,
            drafters=self.placement.drafters,
            numerics=self.placement.numerics,
        )

    def _end(self) -> Complete | None:
        """How it ended, where the tokens say so: only the verifier's last message was lost."""
        if not self._ids:
            return None
        if self._stops(self._ids[-1]):
            return self._report(FinishReason.STOP, len(self._ids))
        if len(self._ids) == self._order.max_tokens:
            return self._report(FinishReason.LENGTH, len(self._ids))
        return None

    def _stops(self, id_: int) -> bool:
        ends = () if self._order.ignore_eos else self._model.eos_token_ids
        return id_ in ends or id_ in self._order.stop_token_ids

    def _whole(self, end: Complete) -> Complete:
        return self._report(end.finish_reason, len(self._ids)) if self._moved else end

    def _report(self, reason: int, tokens: int, stop: str = "") -> Complete:
        """Reports in the client's terms: its own prompt, and so many of its tokens."""
        prompt = len(self._order.prompt_ids)
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=tokens,
            cached_tokens=min(self.tally.cached_tokens, prompt),
        )
        statistics = self.tally.speculation(self._order, tokens)
        return Complete(finish_reason=reason, usage=usage, speculation=statistics, stop=stop)

    async def _move(self, error: PacelineError, deadline: float) -> None:
        """Chooses where to go on; raises `error` where that is no use."""
        full = isinstance(error, ResourceExhausted)
        if not (full or isinstance(error, Unavailable) or _internal(error)):
            raise error
        lost = self.placement.verifier
        waits = full and bool(self._ids)  # for room: what was begun does
        still_full = waits and lost in self._shunned
        if not still_full:  # else its pauses and `wait_s` bound it: to be refused costs little
            self._fail(error, deadline, waits=waits)
        self.placement = await self._next(error)
        if still_full and self.placement.verifier == lost:
            return
        if not (still_full or self._budget.take()):  # others were faster
            self._verdict.convict()
            raise error
        self.moves += 1
        extra = {
            "request": self._order.request_id,
            "lost": lost,
            "verifier": self.placement.verifier,
            "tokens": len(self._ids),
            "reason": str(error),
        }
        log.warning("generation moved", extra=extra)

    def _fail(self, error: PacelineError, deadline: float, *, waits: bool) -> None:
        """Takes note that a verifier failed it; raises `error` where none is to be asked again.

        Full ones count once, however many they are, where it waits for room.
        """
        self._shunned.add(self.placement.verifier)
        self._failures = max(self._failures, 1) if waits else self._failures + 1
        if self._failures >= self._config.attempts or self._budget.level < 1:
            self._verdict.convict()
            raise error
        now = asyncio.get_running_loop().time()
        self._give_up = min(now + self._config.wait_s, deadline)
        self.tally.move()
        self._moved = True

    async def _next(self, error: PacelineError) -> Placement:
        loop = asyncio.get_running_loop()
        while True:
            await self._backoff.pause()
            try:
                found = self._fleet.go_on(
                    self._model,
                    self._order.method,
                    self.placement.numerics,
                    tokens=len(self._order.prompt_ids) + self._order.max_tokens,
                    shunned=self._shunned,
                )
            except Unavailable:
                found = None
            refused = found is None or found.verifier in self._shunned
            if refused and _internal(error):
                self._verdict.convict()
                raise error
            full = refused and isinstance(error, ResourceExhausted)
            if full and not self._ids:
                raise error
            late = loop.time() >= self._give_up
            if found is not None and not (full and late):
                return found
            if late:
                raise Unavailable(
                    f"{error}; no other verifier of {self._model.name} with the same numerics "
                    f"came within {self._config.wait_s:g} s; retry later"
                ) from error


def _internal(error: PacelineError) -> bool:
    """Whether a verifier says that something is broken, in it or in what was asked."""
    return error.code == PacelineError.code
