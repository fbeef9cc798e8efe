"""Reads the branches a drafter sends; what cannot be checked is told from what can."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from paceline.v1 import drafter_pb2

from common.model.tree import Drawn
from verifier.drafting.link import Branch

_MOST_LOOKED_AT = 256
"""Branches of a wave: drafters send a few at a time, and whatever one sends costs little here."""

_MOST_ROUNDING = 1e-3
"""By how much the probabilities of a distribution may miss 1."""


class Received:
    """Branches for one round, as they were sent. A `Wave`.

    Args:
        message: They.
        vocab_size: Of the target.
        came_at: When, in seconds of the monotonic clock.
    """

    def __init__(self, message: drafter_pb2.Branches, vocab_size: int, came_at: float) -> None:
        self.session, self.incarnation = message.session, message.incarnation
        self.base, self.path_hash = message.base, message.path_hash
        self.came_at = came_at
        self._branches, self._vocab_size = message.branches, vocab_size

    def find(self, accepted: int, bonus: int) -> Branch | None:
        """See `Wave`."""
        for branch in islice(self._branches, _MOST_LOOKED_AT):
            if branch.accepted == accepted and branch.bonus == bonus:
                return self._checked(branch)
        return None

    def _checked(self, branch: drafter_pb2.Branch) -> Branch:
        ids, drawn = tuple(branch.ids), branch.drawn
        if branch.offset:  # each is sent whole so far
            raise ValueError("it continues one that never came")
        if max(ids, default=0) >= self._vocab_size:
            raise ValueError("the target does not know its ids")
        if drawn and not _all_can_be_drawn(ids, drawn, self._vocab_size):
            raise ValueError("its ids were not drawn from what it says")
        return Branch(ids, tuple(Drawn(tuple(one.ids), tuple(one.probabilities)) for one in drawn))


def _all_can_be_drawn(
    ids: Sequence[int], drawn: Sequence[drafter_pb2.Drawn], vocab_size: int
) -> bool:
    return len(drawn) == len(ids) and all(
        _can_be_drawn(token, one, vocab_size) for token, one in zip(ids, drawn, strict=True)
    )


def _can_be_drawn(token: int, drawn: drafter_pb2.Drawn, vocab_size: int) -> bool:
    """Whether this is a distribution, and the token one of its own."""
    return (
        len(drawn.ids) == len(set(drawn.ids)) == len(drawn.probabilities)
        and token in drawn.ids
        and max(drawn.ids) < vocab_size
        and all(chance > 0 for chance in drawn.probabilities)
        and abs(sum(drawn.probabilities) - 1) < _MOST_ROUNDING
    )
