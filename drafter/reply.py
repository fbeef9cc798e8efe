"""What the engine has to say to verifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from common.model.tree import Drawn
from drafter.branch import Round


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
