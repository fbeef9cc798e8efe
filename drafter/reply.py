"""What the engine has to say to verifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from common.model.tree import Drawn
from drafter.branch import Round
from drafter.mirror import Mirror
from drafter.totals import Totals


class Reply(NamedTuple):
    """News of one session for its verifier: a branch, a warm mirror, or the end of one."""

    session: int
    """The verifier's number for the session."""
    incarnation: int
    """Of its mirror."""
    round: Round | None = None
    """Set with `ids`: the round whose outcome they continue."""
    ids: tuple[int, ...] = ()
    """Draft tokens."""
    drawn: tuple[Drawn, ...] = ()
    """What each was drawn from, where the verifier wants to know."""
    warm: int | None = None
    """Set when the first prefill is done: tokens of the text."""
    dropped: str | None = None
    """Set when the mirror was given up: why."""


Outbox = Callable[[list[Reply]], None]
"""Takes what one step has for one verifier; called on the engine's thread, must not block."""

Key = tuple[Outbox, int]
"""Names a session: whose it is, and that verifier's number for it."""


class Replies:
    """Replies until they are sent; on the engine's thread.

    Args:
        totals: Where to count.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._unsent: dict[Outbox, list[Reply]] = {}

    def branches(self, key: Key, mirror: Mirror) -> None:
        """Hands over the branches of a mirror that are finished."""
        for branch in mirror.finished():
            self._totals.branches += 1
            reply = Reply(
                session=key[1],
                incarnation=mirror.incarnation,
                round=branch.outcome,
                ids=branch.ids,
                drawn=branch.drawn,
            )
            self._add(key, reply)

    def warm(self, key: Key, mirror: Mirror) -> None:
        """Says that a mirror has computed all of its text."""
        self._add(key, Reply(key[1], mirror.incarnation, warm=mirror.text.length))

    def dropped(self, key: Key, incarnation: int, reason: str) -> None:
        """Says that there is no mirror, or none any more."""
        self._totals.dropped += 1
        self._add(key, Reply(key[1], incarnation, dropped=reason))

    def forget(self, outbox: Outbox) -> None:
        """Says nothing more to a verifier that went away."""
        self._unsent.pop(outbox, None)

    def send(self) -> None:
        """Sends each verifier its own."""
        for outbox, replies in self._unsent.items():
            outbox(replies)
        self._unsent = {}

    def _add(self, key: Key, reply: Reply) -> None:
        self._unsent.setdefault(key[0], []).append(reply)
