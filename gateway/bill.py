"""What a generation takes of its tenant's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.telemetry.span import coded
from gateway.admission import Account
from gateway.request import Chunk, Event, Started

# Codes of a generation that no verifier began, though nothing was wrong with it.
_REFUSED = frozenset({"INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})


class Bill:
    """Charges an account for one generation.

    The prompt counts before any verifier has it: else many requests would come in before the first
    is charged. Where none begins with it, its tokens are given back.

    What is resumed counts at the end: else the first that come over from a gateway that was lost
    would keep the others of the tenant out, and their texts would break off.

    Args:
        account: The tenant's.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._prompt_tokens = self._resumed_tokens = 0
        self._served = False

    def add(self, events: tuple[Event, ...]) -> None:
        """Takes what is about to be told the client."""
        for event in events:
            if isinstance(event, Started):
                self._prompt_tokens = event.prompt_tokens
                self._resumed_tokens = event.resumed_tokens
                self._account.charge(event.prompt_tokens)
                continue
            self._served = True
            if isinstance(event, Chunk):
                self._account.charge(len(event.ids))

    def end(self, code: str) -> None:
        """Settles it.

        Args:
            code: How the generation ended.
        """
        refused = code in _REFUSED and not self._served
        self._account.charge(-self._prompt_tokens if refused else self._resumed_tokens)


@contextmanager
def billed(account: Account) -> Iterator[Bill]:
    """Charges a tenant for what a block generates; an error ends it with its code."""
    bill = Bill(account)
    with coded(bill.end):
        yield bill
