"""All workers of the static lists, and the models they add up to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidArgument, NotFound, Unavailable
from common.tokenizer import Tokenizer
from gateway.placement import Candidate, Placement, misfit, offered_methods, place
from gateway.workers import WorkerHandle

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is served.

    Attributes:
        name: Its name in requests.
        vocab_size: Ids run from 0 to vocab_size - 1.
        max_model_len: Most tokens of prompt and output together.
        methods: Speculation methods available now.
        eos_token_ids: Ids that end a generation.
        tokenizer: Its tokenizer, or None where it takes token ids only.
    """

    name: str
    vocab_size: int
    max_model_len: int
    methods: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    @property
    def has_chat_template(self) -> bool:
        """Whether it takes chat messages."""
        return self.tokenizer is not None and self.tokenizer.has_chat_template


class Fleet:
    """Follows every worker while it is open.

    Args:
        verifiers: Addresses of the verifiers.
        drafters: Addresses of the drafters.
        tokenizers: Loaded tokenizers by fingerprint.
        interval_ms: Time between two load reports of a worker.
        on_change: Awaited with whether any verifier is there, when a worker comes or goes.
    """

    def __init__(
        self,
        verifiers: Sequence[str],
        drafters: Sequence[str],
        tokenizers: Mapping[str, Tokenizer],
        *,
        interval_ms: int,
        on_change: Callable[[bool], Awaitable[None]],
    ) -> None:
        def handles(tier: str, addresses: Sequence[str]) -> dict[str, WorkerHandle]:
            options: dict[str, Any] = {"interval_ms": interval_ms, "on_change": self._changed}
            return {address: WorkerHandle(address, tier, **options) for address in addresses}

        self._verifiers = handles("verifier", verifiers)
        self._drafters = handles("drafter", drafters)
        self._tokenizers = tokenizers
        self._on_change = on_change
        self._reported: set[tuple[str, int, str, int]] = set()
        self._without_tokenizer: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Fleet:
        for handle in (*self._verifiers.values(), *self._drafters.values()):
            self._tasks.append(asyncio.create_task(handle.follow()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for handle in (*self._verifiers.values(), *self._drafters.values()):
            await handle.close()

    def models(self) -> list[Model]:
        """Returns the models of all verifiers ever reached, by name.

        Raises:
            Unavailable: No verifier has been reached yet.
        """
        return [self._model(name) for name in self._names()]

    def resolve(self, name: str) -> Model:
        """Finds a model; an empty name means the only one.

        Raises:
            NotFound: No verifier serves it.
            InvalidArgument: The name is empty, but there are several models.
            Unavailable: No verifier has been reached yet.
        """
        served = self._names()
        listed = ", ".join(served)
        if name in served:
            return self._model(name)
        if name:
            raise NotFound(f"model: no {name!r} here; served: {listed}")
        if len(served) > 1:
            raise InvalidArgument("model", f"must name one of {listed}")
        return self._model(served[0])

    def place(self, model: str, method: str, owner: str | None) -> Placement:
        """Chooses verifier and drafters for a request to `model`; see `placement.place`."""
        return place(method, self._of(model), _candidates(self._drafters), owner)

    def verifier(self, address: str) -> WorkerHandle:
        """Returns the handle of a verifier."""
        return self._verifiers[address]

    def _names(self) -> list[str]:
        names = sorted({each.description.model for each in _candidates(self._verifiers)})
        if not names:
            raise Unavailable(f"no verifier is reachable: {', '.join(self._verifiers)}")
        return names

    def _of(self, model: str) -> list[Candidate]:
        return [v for v in _candidates(self._verifiers) if v.description.model == model]

    def _model(self, name: str) -> Model:
        verifiers = self._of(name)
        available = [each for each in verifiers if each.available]
        first = verifiers[0].description
        return Model(
            name=name,
            vocab_size=first.vocab_size,
            # Any of them may get the request.
            max_model_len=min(each.description.max_model_len for each in verifiers),
            methods=offered_methods(available, _candidates(self._drafters)),
            eos_token_ids=first.eos_token_ids,
            tokenizer=self._tokenizers.get(first.tokenizer_fingerprint),
        )

    async def _changed(self) -> None:
        for verifier in _candidates(self._verifiers):
            self._check_tokenizer(verifier)
            for drafter in _candidates(self._drafters):
                self._check_pair(verifier, drafter)
        await self._on_change(any(handle.present for handle in self._verifiers.values()))

    def _check_tokenizer(self, verifier: Candidate) -> None:
        """Tells once per model that text cannot be sent to it."""
        description = verifier.description
        known = description.tokenizer_fingerprint in self._tokenizers
        if not known and description.model not in self._without_tokenizer:
            self._without_tokenizer.add(description.model)
            extra = {"model": description.model, "fingerprint": description.tokenizer_fingerprint}
            log.warning("model takes token ids only: no tokenizer of it is loaded", extra=extra)

    def _check_pair(self, verifier: Candidate, drafter: Candidate) -> None:
        """Tells once per pair of processes that they do not fit; placement just skips them."""
        reason = misfit(verifier.description, drafter.description)
        pair = (
            verifier.address,
            verifier.description.incarnation,
            drafter.address,
            drafter.description.incarnation,
        )
        if reason is None or pair in self._reported:
            return
        self._reported.add(pair)
        extra = {"verifier": verifier.address, "drafter": drafter.address, "reason": reason}
        log.warning("drafter does not fit", extra=extra)


def _candidates(handles: Mapping[str, WorkerHandle]) -> list[Candidate]:
    found = (handle.candidate for handle in handles.values())
    return [candidate for candidate in found if candidate is not None]
