"""Reads the branches a drafter sends; what cannot be checked is told from what can."""

from __future__ import annotations

from paceline.v1 import drafter_pb2

from common.model.tree import Drawn
from verifier.methods.draft_link import Arrival, RoundKey

_MOST_ROUNDING = 1e-3
"""By how much the probabilities of a distribution may miss 1."""


def sensible(branch: drafter_pb2.Branch, vocab_size: int) -> bool:
    """Whether a branch can be checked: whole, as each is sent so far, and of ids that exist."""
    if branch.offset or any(token >= vocab_size for token in branch.ids):
        return False
    if not branch.drawn:
        return True
    return len(branch.drawn) == len(branch.ids) and all(
        _can_be_drawn(token, drawn, vocab_size)
        for token, drawn in zip(branch.ids, branch.drawn, strict=True)
    )


def arrival(branches: drafter_pb2.Branches, branch: drafter_pb2.Branch, came_at: float) -> Arrival:
    """Reads one branch of a message, which came at so many seconds of the monotonic clock."""
    return Arrival(
        session=branches.session,
        incarnation=branches.incarnation,
        key=RoundKey(
            base=branches.base,
            path_hash=branches.path_hash,
            accepted=branch.accepted,
            bonus=branch.bonus,
        ),
        ids=tuple(branch.ids),
        drawn=tuple(Drawn(tuple(one.ids), tuple(one.probabilities)) for one in branch.drawn),
        came_at=came_at,
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
