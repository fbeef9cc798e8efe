"""What has been done so far for one request, by all the verifiers it ran on.

For the cases in which no verifier's own report covers it: a stop string ended the generation, or
a verifier was lost on the way. All numbers are as of the last message, or of the token before a
stop string, so they fit each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.rpc.convert import LOSSY
from gateway.request import Committed, Order, Resume, Speculation, TokenSource


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
        self._parts: list[_Part] = []
        self._method = ""  # the latest that ran

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first verifier had cached already; 0 where it is not known."""
        return self._cached_tokens or 0

    def add(self, message: Committed) -> None:
        """Takes the next message. It holds whole rounds, each accepted tokens and one more."""
        if self._cached_tokens is None:
            self._cached_tokens = message.cached_tokens
        rounds, drafted_tokens = self._before
        self._method = message.method or self._method
        self._take(
            message.sources,
            rounds + message.rounds,
            drafted_tokens + message.drafted_tokens,
            message.method,
        )

    def resume(self, before: Resume) -> None:
        """Takes over what a client tells of the part that another gateway streamed."""
        self._cached_tokens = 0  # what is cached now, that part may have left
        self._take(before.sources, before.rounds, before.drafted_tokens)
        self.move()

    def move(self) -> None:
        """Notes that another verifier goes on, whose messages count from 0 again."""
        self._before = (self.rounds, self.drafted_tokens)

    def _take(
        self, sources: Sequence[int], rounds: int, drafted_tokens: int, method: str = ""
    ) -> None:
        """Takes the tokens of a message, and what was counted with it."""
        of_part = rounds - self.rounds, drafted_tokens - self.drafted_tokens
        right = bytes(source == TokenSource.ACCEPTED for source in sources)
        self._parts.append(_Part(right, *of_part, method))
        self.rounds, self.drafted_tokens = rounds, drafted_tokens

    def speculation(self, order: Order, tokens: int) -> Speculation:
        """Returns what speculation did.

        The method is the one that ran last. Which of a hybrid's methods a token came from is known
        to the verifier alone, and left out.

        Args:
            order: The request.
            tokens: Of the first so many. What rounds of the message drafted in which they end is
                known of all of them together: each counts the same.
        """
        parts = list(_first(self._parts, tokens))
        by_method: Counter[str] = Counter()
        for part in parts:
            if part.method and "+" not in part.method:
                by_method[part.method] += part.accepted
        per_position = _per_position(right for part in parts for right in part.right)
        return Speculation(
            method=self._method or order.method,
            acceptance=order.acceptance,
            rounds=sum(part.rounds for part in parts),
            drafted_tokens=sum(part.drafted_tokens for part in parts),
            accepted_tokens=sum(per_position),
            accepted_per_position=tuple(per_position),
            lossy=order.acceptance in LOSSY,
            accepted_by_method=dict(+by_method),
        )


class _Part(NamedTuple):
    """One message."""

    right: bytes  # of each of its tokens, whether it is a draft token
    rounds: int
    drafted_tokens: int
    method: str

    @property
    def accepted(self) -> int:
        """Draft tokens among its own."""
        return self.right.count(1)

    def cut(self, tokens: int) -> _Part:
        """Its first tokens, and the rounds that brought them."""
        kept = self._replace(right=self.right[:tokens])
        ends_inside = kept.right.endswith(b"\1")
        rounds = min(tokens - kept.accepted + ends_inside, self.rounds)
        drafted = self.drafted_tokens * rounds // max(self.rounds, 1)
        return kept._replace(rounds=rounds, drafted_tokens=max(drafted, kept.accepted))


def _first(parts: Iterable[_Part], tokens: int) -> Iterator[_Part]:
    """The parts that the first tokens make up."""
    for part in parts:
        if tokens <= 0:
            return
        yield part if len(part.right) <= tokens else part.cut(tokens)
        tokens -= len(part.right)


def _per_position(tokens: Iterable[int]) -> list[int]:
    """Rounds in which the first, the second and further draft tokens were accepted."""
    found: list[int] = []
    depth = 0
    for right in tokens:
        if not right:
            depth = 0
            continue
        if depth == len(found):
            found.append(0)
        found[depth] += 1
        depth += 1
    return found
