"""What a verifier has done so far for one request.

For the case that a stop string ends the generation: the verifier's own report is lost then. All
numbers are as of its last message, so they fit each other; tokens beyond the stop string count.
"""

from __future__ import annotations

from gateway.request import Committed, Order, Speculation, TokenSource


class Tally:
    """Follows one request.

    Attributes:
        cached_tokens: Prompt tokens that were cached already.
    """

    def __init__(self) -> None:
        self.cached_tokens = 0
        self._rounds = 0
        self._drafted_tokens = 0
        self._accepted_per_position: list[int] = []

    def add(self, message: Committed) -> None:
        """Takes the next message. It holds whole rounds, each accepted tokens and one more."""
        self.cached_tokens = message.cached_tokens
        self._rounds = message.rounds
        self._drafted_tokens = message.drafted_tokens
        depth = 0
        for source in message.sources:
            if source != TokenSource.ACCEPTED:
                depth = 0
                continue
            if depth == len(self._accepted_per_position):
                self._accepted_per_position.append(0)
            self._accepted_per_position[depth] += 1
            depth += 1

    def speculation(self, order: Order) -> Speculation:
        """Returns what speculation did."""
        return Speculation(
            method=order.method,
            acceptance=order.acceptance,
            rounds=self._rounds,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=sum(self._accepted_per_position),
            accepted_per_position=tuple(self._accepted_per_position),
        )
