"""All workers, as they come and go, and who of them gets a request."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Self

from common.errors import FailedPrecondition, NotFound, Unavailable
from common.tasks import Tasks
from common.tls_config import TlsConfig
from gateway.autoscale import Autoscaler, Pool
from gateway.candidate import Candidate
from gateway.catalogue import Catalogue
from gateway.complaints import Complaints
from gateway.gain import Gains
from gateway.listing import Listing
from gateway.model import Model
from gateway.placement import Placement, place
from gateway.snapshot import PairView, Snapshot, WorkerView, pairs, standing
from gateway.tokenizers import Tokenizers
from gateway.workers import WorkerHandle, candidates

_GAINS_S = 1.0
"""Between two looks through what is measured, which is averages over about as long."""

_AT_ONCE = 256
"""Pairs that are looked through before anybody else may run: a few milliseconds."""


class Fleet:
    """Follows every worker that `update` tells it of, while it is open.

    Args:
        tokenizers: Loaded ones.
        interval_ms: Time between two load reports of a worker.
        on_change: Told whether any verifier is there, when a worker comes or goes.
        tls: Certificates; without any workers are called in plaintext.

    Attributes:
        catalogue: The models that they add up to.
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        *,
        interval_ms: int,
        on_change: Callable[[bool], None],
        tls: TlsConfig | None = None,
    ) -> None:
        self._interval_ms = interval_ms
        self._tls = tls
        self._verifiers = Listing("verifier", self._made)
        self._drafters = Listing("drafter", self._made)
        self.catalogue = Catalogue(self._verifiers, self._drafters, tokenizers)
        self._on_change = on_change
        self._complaints = Complaints(tokenizers)
        self._tasks = Tasks()
        self._autoscaler = Autoscaler()
        self._turns: Counter[str] = Counter()  # requests placed that may draft, by verifier
        self._gains: dict[str, Gains] = {}  # by model
        self._judged_at = -math.inf

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.finish(cancel=True)

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
        listing = {"verifier": self._verifiers, "drafter": self._drafters}[tier]
        made, gone, back = listing.update(addresses)
        for handle in made:
            self._tasks.start(handle.live())
        self._complaints.forget(gone)
        for address in gone:
            del self._turns[address]
        if gone or back:
            self._changed()

    def place(
        self, model: Model, method: str, owner: str | None = None, *, tokens: int = 0
    ) -> Placement:
        """Chooses verifier and drafters for a request to `model`; see `placement.place`."""
        return place(
            method,
            self.catalogue.serving(model),
            self._drafters.recent,
            owner,
            away=self.catalogue.away(model),
            turn=self._turn,
            tokens=tokens,
            gains=self._gains_of(model),
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
            method: The method it began with; the text needs none, where nobody is left to run it,
                or none but who failed it.
            numerics: Fingerprint of who began: only the same numerics write the same text.
            tokens: Of prompt and output, at most.
            owner: The verifier that holds the session.
            shunned: Addresses of verifiers that failed it already.

        Raises:
            Unavailable: No verifier is left that could.
        """
        choose = partial(
            place,
            verifiers=self.catalogue.serving(model, numerics),
            drafters=self._drafters.recent,
            tokens=tokens,
            owner=owner,
            shunned=shunned,
            gains=self._gains_of(model),
        )
        try:
            found = choose(method, turn=self._turn)
        except (FailedPrecondition, Unavailable):
            return choose("plain")
        if found.verifier not in shunned:
            return found
        without = choose("plain")  # who did not fail it may lack the method
        return found if without.verifier in shunned else without

    @contextmanager
    def reserved(self, placement: Placement) -> Iterator[None]:
        """Counts a request that is about to be sent: of many at once, not all choose these."""
        with ExitStack() as stack:
            if (verifier := self._verifiers.listed.get(placement.verifier)) is not None:
                stack.enter_context(verifier.reserved())
            stack.enter_context(self.paired(placement))
            yield

    @contextmanager
    def paired(self, placement: Placement) -> Iterator[None]:
        """Counts a session of the first drafter offered, for as long as it is drafted for."""
        first = self._drafters.listed.get(next(iter(placement.drafters), ""))
        with ExitStack() as stack:
            if first is not None:
                stack.enter_context(first.reserved())
            yield

    def candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """Returns all verifiers and all drafters listed that were ever reached."""
        return candidates(self._verifiers.listed), candidates(self._drafters.listed)

    def pools(self) -> list[Pool]:
        """Returns all pools of workers, and the size that each should have."""
        return self._autoscaler.pools(*self.candidates())

    def workers(self) -> list[WorkerView]:
        """Returns all workers, those that left and have not ended too, by tier, pool, address."""
        return sorted((*self._verifiers.views(), *self._drafters.views()), key=standing)

    async def snapshot(self) -> Snapshot:
        """Returns all that is known of the fleet; others run while pairs are looked through."""
        found: list[PairView] = []
        for pair in pairs(dict(self._verifiers.listed), dict(self._drafters.listed)):
            found.append(pair)
            if len(found) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        workers, pools = self.workers(), self.pools()
        return Snapshot(workers=tuple(workers), pairs=tuple(found), pools=tuple(pools))

    async def drain(self, address: str, grace_s: int) -> int:
        """Retires a worker; returns the sequences still in it.

        Args:
            address: As it is listed, or was.
            grace_s: Seconds that running requests get; 0 is the worker's own default.

        Raises:
            NotFound: No worker is listed there.
            PacelineError: It did not answer.
        """
        known = self._verifiers.known(address) or self._drafters.known(address)
        if known is None:
            raise NotFound(f"address: no worker is listed at {address!r}")
        return await known.drain(grace_s)

    def process(self, address: str) -> str:
        """Names the process at a verifier's address; another one, another name. "" for none."""
        known = self._verifiers.known(address)
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
        known = self._verifiers.known(address)
        if known is None or not (leaving or address in self._verifiers.listed):
            raise Unavailable(f"verifier {address} has left the fleet")
        return known

    def _turn(self, verifier: str) -> int:
        """Number of a request that may draft, among its verifier's.

        Not among its model's: where verifiers take turns, all trials could fall on one of them.
        """
        self._turns[verifier] += 1
        return self._turns[verifier]

    def _gains_of(self, model: Model) -> Gains:
        """What a model's verifiers have measured with all drafters: too much to look through for
        each request."""
        now = time.monotonic()
        if now - self._judged_at >= _GAINS_S:
            self._gains, self._judged_at = {}, now
        if model.name not in self._gains:
            serving = self.catalogue.serving(model)
            self._gains[model.name] = Gains(serving, self._drafters.recent)
        return self._gains[model.name]

    def _made(self, tier: str, address: str) -> WorkerHandle:
        return WorkerHandle(
            address,
            tier,
            interval_ms=self._interval_ms,
            on_change=self._changed,
            tls=self._tls,
        )

    def _changed(self) -> None:
        self._let_go()
        self._complaints.check(*self.candidates())
        self._on_change(any(each.present for each in self._verifiers.listed.values()))

    def _let_go(self) -> None:
        """Lets those go that left and have ended."""
        for listing in (self._verifiers, self._drafters):
            listing.let_go()
