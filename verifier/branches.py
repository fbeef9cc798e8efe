"""Reads the branches a drafter sends; what cannot be checked is told from what can."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.v1 import drafter_pb2

from common.model.tree import Drawn
from verifier.methods.draft_link import Arrival, RoundKey

_MOST_ROUNDING = 1e-3
"""By how much the probabilities of a distribution may miss 1."""


def read(branches: drafter_pb2.Branches, vocab_size: int, came_at: float) -> list[Arrival | None]:
    """Reads the branches for one round.

    Args:
        branches: As they were sent.
        vocab_size: Of the target.
        came_at: When, in seconds of the monotonic clock.

    Returns:
        For each what arrived; None where it cannot be checked.
    """
    session, incarnation = branches.session, branches.incarnation
    base, path_hash = branches.base, branches.path_hash
    found: list[Arrival | None] = []
    for branch in branches.branches:  # several in each round: every call here counts
        ids, drawn = tuple(branch.ids), branch.drawn
        if branch.offset or max(ids, default=0) >= vocab_size:  # each is sent whole so far
            found.append(None)
            continue
        if drawn and not _all_can_be_drawn(ids, drawn, vocab_size):
            found.append(None)
            continue
        key = RoundKey(base, path_hash, branch.accepted, branch.bonus)
        draws = tuple(Drawn(tuple(one.ids), tuple(one.probabilities)) for one in drawn)
        found.append(Arrival(session, incarnation, key, ids, draws, came_at))
    return found


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
