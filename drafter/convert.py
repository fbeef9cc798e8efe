"""Between the drafter's messages and its engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from paceline.v1 import drafter_pb2

from common.errors import InvalidArgument
from common.rpc.convert import sampling_from_proto
from drafter.branch import Round
from drafter.reply import Outbox, Reply
from drafter.sessions import Opening, Sessions

MOST_SAID = 10_000
"""Sessions that one message may open, tell of and close: two bytes of it can be such a piece of
news, which takes a hundred times as much here."""


def notes(
    sessions: Sessions,
    outbox: Outbox,
    message: drafter_pb2.DraftRequest,
    vocab_size: int = 0,
) -> list[Callable[[], None]]:
    """What one message says of sessions, in order.

    Args:
        sessions: What is to hear it.
        outbox: Of who sent it.
        message: It.
        vocab_size: See `Opening`.

    Raises:
        InvalidArgument: It says more than a verifier's step can have to say.
    """
    said = len(message.opens) + len(message.commits) + len(message.closes)
    if said > MOST_SAID:
        raise InvalidArgument("commits", f"a message may be of {MOST_SAID} sessions, got {said}")
    now = time.monotonic()
    asked: list[Callable[[], None]] = [
        partial(sessions.open, outbox, item.session, item.incarnation, _opening(item, vocab_size))
        for item in message.opens
    ]
    asked.extend(
        partial(sessions.commit, outbox, item.session, item.incarnation, _round(item), now)
        for item in message.commits
    )
    asked.extend(
        partial(sessions.close, outbox, item.session, item.incarnation) for item in message.closes
    )
    return asked


def response(replies: list[Reply]) -> drafter_pb2.DraftResponse:
    """Writes what one step has for a verifier as one message."""
    message = drafter_pb2.DraftResponse()
    together: dict[tuple[int, int, int, int], drafter_pb2.Branches] = {}  # outcomes of one round
    for reply in replies:
        where = {"session": reply.session, "incarnation": reply.incarnation}
        if reply.round is not None:
            base, path_hash = reply.round.base, reply.round.path_hash
            key = (reply.session, reply.incarnation, base, path_hash)
            if key not in together:
                together[key] = message.branches.add(**where, base=base, path_hash=path_hash)
            branch = together[key].branches.add(
                accepted=reply.round.accepted, bonus=reply.round.ids[-1], ids=reply.ids
            )
            for drawn in reply.drawn:
                branch.drawn.add(ids=drawn.ids, probabilities=drawn.probabilities)
        elif reply.warm is not None:
            message.readies.add(**where, length=reply.warm)
        else:
            message.drops.add(**where, reason=reply.dropped or "")
    return message


def _opening(opened: drafter_pb2.Open, vocab_size: int) -> Opening:
    return Opening(
        ids=tuple(opened.ids),
        sampling=sampling_from_proto(opened.sampling),
        drawn=opened.drawn,
        salt=opened.cache_salt,
        draft_tokens=opened.draft_tokens,
        fanout=opened.fanout,
        least=tuple(opened.least_chances),
        vocab_size=vocab_size,
    )


def _round(commit: drafter_pb2.Commit) -> Round:
    return Round(
        base=commit.base,
        path_hash=commit.path_hash,
        accepted=commit.accepted,
        ids=tuple(commit.ids),
        draft_tokens=commit.draft_tokens,
        verifying=commit.verifying,
        fanout=commit.fanout,
        least=tuple(commit.least_chances),
    )
