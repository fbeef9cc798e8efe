"""What is measured: one way to decode the prompts, one at a time or several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline import Chunk, Client

from bench.contenders.contender import Contender
from bench.crowd import LEAST_S, Note, crowd
from bench.measurement import Pass, Sample
from bench.settings import DRAFT
from bench.unseen import Unseen
from launcher.timing import Timed, timed

Check = Callable[[], None]
"""Called after a pass that was to be drafted for; raises where it was not, since the drafter is
gone. Requests go on without one, at plain decoding's rate; that nothing was drafted would not tell,
since drafts that do not pay are left off."""


class Variant(Protocol):
    """A way to decode."""

    name: str

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt."""


class ContenderVariant:
    """A contender in its own process, one prompt at a time."""

    def __init__(self, name: str, contender: Contender) -> None:
        self.name = name
        self._contender = contender

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt, the first with a seed of 0, the next with 1."""
        contender = self._contender
        return Pass.of(
            [contender.generate(prompt, max_tokens, seed) for seed, prompt in enumerate(prompts)]
        )


class GatewayVariant:
    """Through all services, one prompt at a time.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        draft_tokens: Length of every draft; 0 leaves it to the verifier.
        temperature: 0 decodes greedily.
        check: Of the deployment's drafter.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        method: str,
        draft_tokens: int = 0,
        *,
        temperature: float = 0.0,
        check: Check = lambda: None,
    ) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._draft_tokens = draft_tokens
        self._temperature = temperature
        self._check = _of_drafts(method, check)

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt, the first with a seed of 0, the next with 1.

        Raises:
            StartupError: Its drafter is gone.
        """
        runs = (self._run(prompt, max_tokens, seed) for seed, prompt in enumerate(prompts))
        done = Pass.of([sample(run) for run in runs])
        self._check()
        return done

    def _run(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Timed:
        generation = self._client.generate(
            token_ids=prompt,
            method=self._method,
            max_tokens=max_tokens,
            draft_tokens=self._draft_tokens,
            temperature=self._temperature,
            seed=seed,
        )
        return timed(generation)


class ContendersCrowd:
    """A contender in its own process, several prompts at a time.

    Args:
        name: What to call it.
        contender: One that takes as many.
        concurrency: Prompts at a time.
        least_s: See `bench.crowd`.
    """

    def __init__(
        self, name: str, contender: Contender, concurrency: int, *, least_s: float = LEAST_S
    ) -> None:
        self.name = name
        self._contender = contender
        self._concurrency = concurrency
        self._least_s = least_s
        self._asked = 0  # prompts, before they counted

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt at least once, the first with a seed of 0, the next with 1.

        They have been asked before, as of a deployment whose methods ask the same ones; of those
        that nobody has asked yet others are asked each time.
        """
        if self._asked < len(prompts):
            self._asked = len(prompts)
            self._contender.crowd(prompts, 2, self._concurrency, 0.0)
        return self._contender.crowd(prompts, max_tokens, self._concurrency, self._least_s)


class ConcurrentVariant:
    """Through all services, several prompts at a time, see `bench.crowd`.

    Args:
        name: What to call it.
        client: Of the gateway.
        method: The speculation method.
        concurrency: Prompts at a time.
        temperature: 0 decodes greedily.
        unseen: Makes prompts that nobody has asked yet; those of one deployment share it.
        check: Of the deployment's drafter.
        least_s: See `bench.crowd`.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        method: str,
        concurrency: int,
        *,
        temperature: float = 0.0,
        unseen: Unseen | None = None,
        check: Check = lambda: None,
        least_s: float = LEAST_S,
    ) -> None:
        self.name = name
        self._client = client
        self._method = method
        self._concurrency = concurrency
        self._temperature = temperature
        self._unseen = unseen or Unseen(())
        self._check = _of_drafts(method, check)
        self._least_s = least_s

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        """Decode every prompt at least once, the first with a seed of 0, the next with 1.

        Raises:
            StartupError: Its drafter is gone.
        """

        def write(seed: int, note: Note) -> Sample:
            def told(chunk: Chunk) -> None:
                if chunk.token_ids:
                    note(time.perf_counter(), len(chunk.token_ids))

            generation = self._client.generate(
                token_ids=self._unseen(prompts[seed]),
                method=self._method,
                max_tokens=max_tokens,
                temperature=self._temperature,
                seed=seed,
            )
            return sample(timed(generation, told))

        done = crowd(write, len(prompts), self._concurrency, self._least_s)
        self._check()
        return done


def _of_drafts(method: str, check: Check) -> Check:
    """A check of drafters, for a method that has them draft."""
    return check if DRAFT in method.split("+") else lambda: None


def sample(run: Timed) -> Sample:
    """Return what the bench keeps of a generation."""
    usage = run.result.usage
    return Sample(
        ids=run.result.token_ids,
        tokens=run.decoded_tokens,
        seconds=run.seconds,
        speculation=run.result.speculation,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
    )
