"""Clients that never stop asking, and where the gateway sends them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from common.errors import Unavailable
from common.sampling_params import SamplingParams
from gateway.auth.caller import Caller
from gateway.fleet import Fleet
from gateway.generation import Generations
from gateway.placement import Placement
from gateway.request import Ask, Chunk, Complete, Prompt

TIMEOUT_S = 600.0
PROMPT_TOKENS = 6

Pairing = tuple[str, str]
"""Addresses of a verifier and of the drafter it is to take; "" for none."""


class WatchedFleet(Fleet):
    """A fleet that says which pairs its requests are on.

    Attributes:
        active: Requests that run now, by pair.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.active: Counter[Pairing] = Counter()

    @contextmanager
    def paired(self, placement: Placement) -> Iterator[None]:
        """Counts a request; see `Fleet.paired`."""
        place = placement.verifier, next(iter(placement.drafters), "")
        self.active[place] += 1
        try:
            with super().paired(placement):
                yield
        finally:
            self.active[place] -= 1


class Traffic:
    """Endless generations, so many at a time; as a context manager.

    Args:
        generations: Runs them.
        clients: How many at a time.
        vocab_size: Ids that prompts are made of.
        max_tokens: Of each generation.
        draft_tokens: Of each draft; 0 leaves it to the verifier.
        seed: Of the prompts.

    Attributes:
        tokens: Committed so far.
        finished: Generations that ended well.
        failures: What the others ended with.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        clients: int,
        vocab_size: int,
        max_tokens: int,
        draft_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        self._generations = generations
        self._vocab_size, self._max_tokens = vocab_size, max_tokens
        self._draft_tokens = draft_tokens
        self._clients = clients
        self._source = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.tokens = 0
        self.finished = 0
        self.failures: list[Exception] = []

    async def __aenter__(self) -> Traffic:
        self._tasks = [asyncio.create_task(self._client(n)) for n in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Lets what runs come to its end, and begins nothing new."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _client(self, number: int) -> None:
        request = 0
        while not self._stopping:
            request += 1
            try:
                await self._ask(f"{number}-{request}")
            except Exception as error:
                self.failures.append(error)
                await asyncio.sleep(0.1)  # nobody hammers a fleet that is not there

    async def _ask(self, name: str) -> None:
        prompt = [self._source.randrange(3, self._vocab_size) for _ in range(PROMPT_TOKENS)]
        run = self._generations.run(
            ask(name, prompt, self._max_tokens, self._draft_tokens), Caller(tenant=""), TIMEOUT_S
        )
        got = 0
        async with aclosing(run) as news:
            async for events in news:
                tokens = sum(len(event.ids) for event in events if isinstance(event, Chunk))
                self.tokens += tokens
                got += tokens
                if isinstance(events[-1], Complete):
                    self.finished += 1
                    if got != self._max_tokens:
                        raise Unavailable(f"{got} of {self._max_tokens} tokens came")


def ask(name: str, prompt: Sequence[int], max_tokens: int, draft_tokens: int = 0) -> Ask:
    """Returns a request for greedy text of a fixed length; 0 has it drafted for at any length."""
    return Ask(
        request_id=name,
        model="",
        prompt=Prompt(token_ids=prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        method="draft",
        draft_tokens=draft_tokens,
        acceptance="coupled",
        stop=(),
        stop_token_ids=(),
        ignore_eos=True,
        session_id="",
    )
