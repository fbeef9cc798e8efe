"""What has been done so far for one request, by all the verifiers it ran on.

For the cases in which no verifier's own report covers it: a stop string ended the generation, or
a verifier was lost on the way. All numbers are as of the last message, so they fit each other;
tokens beyond a stop string count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.request import Committed, Order, Resume, Speculation, TokenSource

# Rules that change the distribution of the text.
_LOSSY = frozenset({"typical"})


class Tally:
    """Follows one request.

    Attributes:
        rounds: Target passes that committed tokens.
        drafted_tokens: Draft tokens checked.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.drafted_tokens = 0
        self._cached_tokens: int | None = None
        self._before = (0, 0)  # rounds and drafted tokens of earlier verifiers
        self._accepted_per_position: list[int] = []
        self._method = ""  # the latest that ran
        self._accepted_by_method: Counter[str] = Counter()

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first verifier had cached already."""
        return self._cached_tokens or 0

    def add(self, message: Committed) -> None:
        """Takes the next message. It holds whole rounds, each accepted tokens and one more."""
        if self._cached_tokens is None:
            self._cached_tokens = message.cached_tokens
        rounds, drafted_tokens = self._before
        self.rounds = rounds + message.rounds
        self.drafted_tokens = drafted_tokens + message.drafted_tokens
        self._method = message.method or self._method
        if message.method and "+" not in message.method:
            accepted = sum(source == TokenSource.ACCEPTED for source in message.sources)
            self._accepted_by_method[message.method] += accepted
        self._count(message.sources)

    def resume(self, before: Resume) -> None:
        """Takes over what a client tells of the part that another gateway streamed."""
        self._count(before.sources)
        self.rounds, self.drafted_tokens = before.rounds, before.drafted_tokens
        self.move()

    def move(self) -> None:
        """Notes that another verifier goes on, whose messages count from 0 again."""
        self._before = (self.rounds, self.drafted_tokens)

    def _count(self, sources: Sequence[int]) -> None:
        depth = 0
        for source in sources:
            if source != TokenSource.ACCEPTED:
                depth = 0
                continue
            if depth == len(self._accepted_per_position):
                self._accepted_per_position.append(0)
            self._accepted_per_position[depth] += 1
            depth += 1

    def speculation(self, order: Order) -> Speculation:
        """Returns what speculation did.

        The method is the one that ran last. Which of a hybrid's methods a token came from is known
        to the verifier alone, and left out.
        """
        return Speculation(
            method=self._method or order.method,
            acceptance=order.acceptance,
            rounds=self.rounds,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=sum(self._accepted_per_position),
            accepted_per_position=tuple(self._accepted_per_position),
            lossy=order.acceptance in _LOSSY,
            accepted_by_method=dict(+self._accepted_by_method),
        )
