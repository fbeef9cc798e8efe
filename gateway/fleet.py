"""All workers, as they come and go, and the models they add up to."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from common.tls_config import TlsConfig
from common.tokenizer import Tokenizer
from gateway.autoscale import Autoscaler, Pool
from gateway.candidate import Candidate
from gateway.complaints import Complaints
from gateway.model import Model
from gateway.placement import Placement, alike, offered_methods, place
from gateway.remembered import Remembered
from gateway.snapshot import Snapshot, WorkerView, pairs, standing, view
from gateway.validation import MAX_NAME_CHARS
from gateway.workers import WorkerHandle

log = logging.getLogger(__name__)


class Fleet:
    """Follows every worker while it is open.

    Args:
        verifiers: Addresses of verifiers known at the start; `update` changes them.
        drafters: Addresses of drafters known at the start.
        tokenizers: Loaded tokenizers by fingerprint.
        interval_ms: Time between two load reports of a worker.
        on_change: Awaited with whether any verifier is there, when a worker comes or goes.
        tls: Certificates; without any workers are called in plaintext.
    """

    def __init__(
        self,
        verifiers: Sequence[str],
        drafters: Sequence[str],
        tokenizers: Mapping[str, Tokenizer],
        *,
        interval_ms: int,
        on_change: Callable[[bool], Awaitable[None]],
        tls: TlsConfig | None = None,
    ) -> None:
        self._interval_ms = interval_ms
        self._tls = tls
        self._verifiers = {each: self._handle("verifier", each) for each in verifiers}
        self._drafters = {each: self._handle("drafter", each) for each in drafters}
        self._tiers = {"verifier": self._verifiers, "drafter": self._drafters}
        # No longer listed, but still there: they finish what they have, or come back.
        self._leaving: dict[str, dict[str, WorkerHandle]] = {tier: {} for tier in self._tiers}
        self._remembered: Remembered[str] = Remembered()  # models
        self._tokenizers = tokenizers
        self._on_change = on_change
        self._complaints = Complaints(tokenizers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._autoscaler = Autoscaler()
        self._turns: Counter[str] = Counter()  # requests placed, by model

    async def __aenter__(self) -> Fleet:
        for handle in (*self._verifiers.values(), *self._drafters.values()):
            self._spawn(handle.live())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def update(self, tier: str, addresses: Collection[str]) -> None:
        """Takes workers in and lets others go, while the fleet is open.

        A worker that is no longer listed gets nothing new; what runs on it goes on, and it is
        followed to its end, or until it is listed again.

        Args:
            tier: "verifier" or "drafter".
            addresses: All addresses of the tier.

        Raises:
            StartupError: A certificate cannot be read; then nothing has changed.
        """
        handles, leaving = self._tiers[tier], self._leaving[tier]
        gone, new = handles.keys() - set(addresses), set(addresses) - handles.keys()
        made = {each: self._handle(tier, each) for each in sorted(new - leaving.keys())}
        back = {each: leaving.pop(each) for each in sorted(new & leaving.keys())}
        for address in sorted(gone):
            log.info(f"{tier} no longer listed", extra={"address": address})
            leaving[address] = handles.pop(address)
        for address, handle in (made | back).items():
            log.info(f"{tier} listed", extra={"address": address})
            handles[address] = handle
        for handle in made.values():
            self._spawn(handle.live())
        self._complaints.forget(gone)
        self._let_go()
        if gone or back:
            self._spawn(self._changed())

    def models(self, scope: Collection[str] | None = None) -> list[Model]:
        """Returns the models of all verifiers ever reached, by name.

        Args:
            scope: Models the caller may know of; None for all.

        Raises:
            Unavailable: No verifier of them has been reached yet.
        """
        return [self._model(name) for name in self._names(scope)]

    def resolve(
        self, name: str, scope: Collection[str] | None = None, numerics: str | None = None
    ) -> Model:
        """Finds a model; an empty name means the only one.

        Args:
            name: Its name.
            scope: Models the caller may know of; None for all.
            numerics: Fingerprint of who began what is to go on; None where nothing was begun.

        Raises:
            PermissionDenied: It is not one of those, whether it is served or not.
            NotFound: No verifier serves it.
            InvalidArgument: The name is empty, but there are several models.
            Unavailable: No verifier has been reached yet, or none of it is listed now: one was of
                late, or it began what is to go on.
        """
        if name and scope is not None and name not in scope:
            raise PermissionDenied("model: these credentials do not cover it")
        served = self._names(scope)
        if name in served:
            return self._model(name, numerics)
        known = sorted({*served, *self._away(scope)})
        if name in known or (name and numerics is not None):
            raise Unavailable(f"no verifier of {name[:MAX_NAME_CHARS]!r} is reachable")
        listed = ", ".join(known)
        if name:
            raise NotFound(f"model: no {name[:MAX_NAME_CHARS]!r} here; served: {listed}")
        if len(known) > 1:
            raise InvalidArgument("model", f"must name one of {listed}")
        return self._model(served[0], numerics)

    def place(
        self, model: Model, method: str, owner: str | None = None, *, tokens: int = 0
    ) -> Placement:
        """Chooses verifier and drafters for a request to `model`; see `placement.place`."""
        return place(
            method,
            self._of(model),
            _candidates(self._drafters),
            owner,
            turn=self._turn(model.name),
            tokens=tokens,
        )

    def go_on(
        self,
        model: Model,
        method: str,
        numerics: str,
        *,
        tokens: int,
        owner: str | None = None,
        shunned: Collection[str] = (),
    ) -> Placement:
        """Chooses who goes on with a generation that was begun elsewhere.

        Args:
            model: The model whose ids it has.
            method: The method it began with; the text needs none, where its drafters are gone.
            numerics: Fingerprint of who began: only the same numerics write the same text.
            tokens: Of prompt and output, at most.
            owner: The verifier that holds the session.
            shunned: Addresses of verifiers that failed it already.

        Raises:
            Unavailable: No verifier is left that could.
        """
        verifiers, drafters = self._of(model, numerics), _candidates(self._drafters)
        choose = partial(
            place,
            verifiers=verifiers,
            drafters=drafters,
            tokens=tokens,
            owner=owner,
            shunned=shunned,
        )
        try:
            return choose(method, turn=self._turn(model.name))
        except FailedPrecondition:
            return choose("plain")

    @contextmanager
    def reserved(self, placement: Placement) -> Iterator[None]:
        """Counts a request that is about to be sent: of many at once, not all choose these."""
        with ExitStack() as stack:
            if placement.verifier in self._verifiers:
                stack.enter_context(self._verifiers[placement.verifier].reserved())
            stack.enter_context(self.paired(placement))
            yield

    @contextmanager
    def paired(self, placement: Placement) -> Iterator[None]:
        """Counts a session of the first drafter offered, for as long as it is drafted for."""
        first = self._drafters.get(next(iter(placement.drafters), ""))
        with ExitStack() as stack:
            if first is not None:
                stack.enter_context(first.reserved())
            yield

    def candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """Returns all verifiers and all drafters that were ever reached."""
        return _candidates(self._verifiers), _candidates(self._drafters)

    def pools(self) -> list[Pool]:
        """Returns all pools of workers, and the size that each should have."""
        return self._autoscaler.pools(*self.candidates())

    def workers(self) -> list[WorkerView]:
        """Returns all workers, those that left and have not ended too, by tier, pool, address."""
        return sorted(
            (
                view(tier, handle, leaving=leaving)
                for leaving, tiers in ((False, self._tiers), (True, self._leaving))
                for tier, handles in tiers.items()
                for handle in handles.values()
            ),
            key=standing,
        )

    def snapshot(self) -> Snapshot:
        """Returns all that is known of the fleet."""
        return Snapshot(
            workers=tuple(self.workers()),
            pairs=tuple(pairs(self._verifiers, self._drafters)),
            pools=tuple(self.pools()),
        )

    async def drain(self, address: str, grace_s: int) -> int:
        """Retires a worker; returns the sequences still in it.

        Args:
            address: As it is listed, or was.
            grace_s: Seconds that running requests get; 0 is the worker's own default.

        Raises:
            NotFound: No worker is listed there.
            PacelineError: It did not answer.
        """
        for handles in (*self._tiers.values(), *self._leaving.values()):
            if address in handles:
                return await handles[address].drain(grace_s)
        raise NotFound(f"address: no worker is listed at {address!r}")

    def handle(self, address: str) -> str:
        """Names the process at a verifier's address; another one, another name. "" for none."""
        known = self._verifiers.get(address) or self._leaving["verifier"].get(address)
        candidate = known.candidate if known is not None else None
        return "" if candidate is None else f"{candidate.description.incarnation:016x}"

    def verifier(self, address: str, *, leaving: bool = False) -> WorkerHandle:
        """Returns the handle of a verifier.

        Args:
            address: Its own.
            leaving: Whether one will do that is listed no longer, but still there.

        Raises:
            Unavailable: It is not there.
        """
        known = self._verifiers.get(address)
        if known is None and leaving:
            known = self._leaving["verifier"].get(address)
        if known is None:
            raise Unavailable(f"verifier {address} has left the fleet")
        return known

    def _names(self, scope: Collection[str] | None) -> list[str]:
        names = sorted({each.description.model for each in _candidates(self._verifiers)})
        if scope is not None:
            names = [name for name in names if name in scope]
            if not names:
                raise Unavailable(
                    "no verifier of a model that these credentials cover is reachable"
                )
        if not names:
            listed = ", ".join(self._verifiers) or "none found yet"
            raise Unavailable(f"no verifier is reachable: {listed}")
        return names

    def _away(self, scope: Collection[str] | None) -> set[str]:
        """Models of verifiers that are listed no longer, but were of late."""
        leaving = {each.description.model for each in _candidates(self._leaving["verifier"])}
        names = leaving | set(self._remembered.names)
        return names if scope is None else names.intersection(scope)

    def _named(self, name: str, numerics: str | None = None) -> list[Candidate]:
        return [
            each
            for each in _candidates(self._verifiers)
            if each.description.model == name
            and numerics in (None, each.description.numerics_fingerprint)
        ]

    def _of(self, model: Model, numerics: str | None = None) -> list[Candidate]:
        """The verifiers to which a model's ids mean what they mean to the gateway."""
        named = self._named(model.name, numerics)
        return [each for each in named if each.description.vocabulary == model.vocabulary]

    def _turn(self, model: str) -> int:
        """Number of a request to a model."""
        self._turns[model] += 1
        return self._turns[model]

    def _model(self, name: str, numerics: str | None = None) -> Model:
        named = self._named(name, numerics) or self._named(name)
        verifiers = alike(named, self._tokenizers)
        available = [each for each in verifiers if each.available]
        first = verifiers[0].description
        return Model(
            name=name,
            tokenizer_fingerprint=first.tokenizer_fingerprint,
            vocab_size=first.vocab_size,
            # Any of them may get the request.
            max_model_len=min(each.description.max_model_len for each in verifiers),
            methods=offered_methods(available, _candidates(self._drafters)),
            eos_token_ids=first.eos_token_ids,
            tokenizer=self._tokenizers.get(first.tokenizer_fingerprint),
        )

    def _handle(self, tier: str, address: str) -> WorkerHandle:
        return WorkerHandle(
            address,
            tier,
            interval_ms=self._interval_ms,
            on_change=self._changed,
            tls=self._tls,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _changed(self) -> None:
        self._let_go()
        self._complaints.check(*self.candidates())
        await self._on_change(any(handle.present for handle in self._verifiers.values()))

    def _let_go(self) -> None:
        """Forgets those that left and have ended; their calls have yet to find out."""
        verifiers = _candidates(self._leaving["verifier"])
        self._remembered.add(each.description.model for each in verifiers)
        for handles in self._leaving.values():
            for handle in [each for each in handles.values() if not each.present]:
                del handles[handle.address]
                handle.leave()


def _candidates(handles: Mapping[str, WorkerHandle]) -> list[Candidate]:
    found = (handle.candidate for handle in handles.values())
    return [candidate for candidate in found if candidate is not None]
