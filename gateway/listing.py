"""The workers of one tier: those that are listed, and those that left and have not ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from gateway.candidate import Candidate
from gateway.snapshot import WorkerView, view
from gateway.workers import WorkerHandle

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
        addresses: Those that are listed from the start.

    Attributes:
        listed: Handles of those that are listed.
        leaving: Of those that are so no longer, but still there: they finish what they have, or
            come back.
    """

    def __init__(
        self, tier: str, make: Callable[[str, str], WorkerHandle], addresses: Collection[str]
    ) -> None:
        self._tier, self._make = tier, make
        self.listed = {each: make(tier, each) for each in addresses}
        self.leaving: dict[str, WorkerHandle] = {}

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
        """Forgets those that left and have ended; their calls have yet to find out."""
        for handle in [each for each in self.leaving.values() if not each.present]:
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


def candidates(handles: Mapping[str, WorkerHandle]) -> list[Candidate]:
    """Those of some workers that were ever reached."""
    found = (handle.candidate for handle in handles.values())
    return [candidate for candidate in found if candidate is not None]
