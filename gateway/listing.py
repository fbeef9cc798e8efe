"""The workers of one tier: those that are listed, those that left and have not ended, and what
was there of late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from gateway.candidate import Candidate
from gateway.remembered import Remembered
from gateway.snapshot import WorkerView, view
from gateway.workers import WorkerHandle, candidates

log = logging.getLogger(__name__)


class Change(NamedTuple):
    """What an update of a listing changed."""

    made: list[WorkerHandle]
    """Of those that are new: nobody follows them yet."""
    gone: set[str]
    """Addresses that are listed no longer."""
    back: set[str]
    """Those that left and had not ended when they were listed again."""


class Listing:
    """Knows the workers of a tier by address.

    Args:
        tier: "verifier" or "drafter".
        make: Makes the handle of an address.

    Attributes:
        listed: Handles of those that are listed.
        leaving: Of those that are so no longer, but still there: they finish what they have, or
            come back.
    """

    def __init__(self, tier: str, make: Callable[[str, str], WorkerHandle]) -> None:
        self._tier, self._make = tier, make
        self.listed: dict[str, WorkerHandle] = {}
        self.leaving: dict[str, WorkerHandle] = {}
        self._remembered: Remembered[Candidate] = Remembered()

    @property
    def away(self) -> list[Candidate]:
        """Those listed no longer that were so within the hour, as if they were lost: the last at
        each address at which nobody is now."""
        here = {at for at, each in self.listed.items() if each.described is not None}
        gone = (*self._remembered.recent, *map(_lost, candidates(self.leaving)))
        return list({each.address: each for each in gone if each.address not in here}.values())

    @property
    def recent(self) -> list[Candidate]:
        """Those listed that were ever reached, and those away; one at each address."""
        return [*self.away, *candidates(self.listed)]

    def update(self, addresses: Collection[str]) -> Change:
        """Takes workers in and lets others go.

        Args:
            addresses: All that are listed now.

        Raises:
            StartupError: A certificate cannot be read; then nothing has changed.
        """
        gone, new = self.listed.keys() - set(addresses), set(addresses) - self.listed.keys()
        back = new & self.leaving.keys()
        made = [self._make(self._tier, each) for each in sorted(new - back)]
        for address in sorted(gone):
            log.info(f"{self._tier} no longer listed", extra={"address": address})
            self.leaving[address] = self.listed.pop(address)
        for handle in [*made, *map(self.leaving.pop, sorted(back))]:
            log.info(f"{self._tier} listed", extra={"address": handle.address})
            self.listed[handle.address] = handle
        return Change(made, gone, back)

    def let_go(self) -> None:
        """Lets those go that left and have ended; their calls have yet to find out."""
        ended = {at: each for at, each in self.leaving.items() if not each.present}
        self._remembered.add(map(_lost, candidates(ended)))
        for handle in ended.values():
            del self.leaving[handle.address]
            handle.leave()

    def known(self, address: str) -> WorkerHandle | None:
        """The worker at an address, listed or leaving; None where there is none."""
        return self.listed.get(address) or self.leaving.get(address)

    def views(self) -> Iterator[WorkerView]:
        """How each of them is."""
        for handle in self.listed.values():
            yield view(self._tier, handle)
        for handle in self.leaving.values():
            yield view(self._tier, handle, leaving=True)


def _lost(worker: Candidate) -> Candidate:
    """What is known of a worker that may come back, or another one in its place."""
    return replace(worker, load=None, in_flight=0, broken=False)
