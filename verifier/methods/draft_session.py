"""What the draft method keeps of each text: its mirror, the round under way, what came for it."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import NamedTuple

from common import fence
from common.model.tree import TokenTree
from verifier.methods.acquaintance import Acquaintance, TextKind
from verifier.methods.draft_length import DraftLength
from verifier.methods.draft_link import Branch, DraftLink, RoundKey, Wave, Wish

MOST_UNTOLD = 32
"""Tokens that gather while no draft is wanted; one message tells them, for each costs the step. A
session leaves its drafter then where no draft pays: under this load, or for any text."""


class Asked(NamedTuple):
    """A branch that was asked for."""

    key: RoundKey
    at: float


@dataclass
class DraftSession:
    """A text and its mirror, if any."""

    id: int
    length: DraftLength
    drawn: bool = False  # the drafter is to say what it draws from
    base: int = 0  # committed ids, while there is a link
    path_hash: int = fence.EMPTY  # of all of them
    incarnation: int = 0
    link: DraftLink | None = None
    warm: bool = False  # the mirror has caught up with the prompt
    on_trial: bool = False  # mirrored to tell whether drafts pay again
    probe: bool = False  # and has not told yet
    refused: dict[DraftLink, float] = field(default_factory=dict)  # not to be asked before
    key: RoundKey | None = None  # the outcome a branch is wanted for
    wanted: int = 0  # tokens asked for in that branch
    sent_at: float = 0.0
    deadline: float = 0.0
    branch: Branch | None = None
    ready_at: float = 0.0  # when a branch had come, or was no longer waited for
    late: Asked | None = None  # whose branch did not come in time
    tree: TokenTree | None = None  # what is being checked
    proposed: list[int] = field(default_factory=list)  # its nodes that are this drafter's
    proposed_at: float = 0.0
    ended_at: float | None = None  # when its last round of this drafter ended
    flight: tuple[int, int] | None = None  # base and path hash of the round of `branch`
    past: tuple[int, int] | None = None  # of the round before
    untold: list[int] = field(default_factory=list)  # committed, unknown to the drafter
    told_hash: int = fence.EMPTY  # of what is before them
    ahead: list[Wave] = field(default_factory=list)  # for outcomes of that round

    @property
    def known(self) -> Acquaintance:
        """What is known of its drafter, which it has, with texts like this one."""
        assert self.link is not None
        return self.link.known.of(self.kind(self.base))

    def kind(self, tokens: int) -> TextKind:
        """That of the text, where it has so many tokens."""
        return TextKind.of(self.drawn, tokens)

    def unlink(self) -> None:
        """Forgets a drafter, and all it has sent."""
        if self.link is not None:
            self.link.meter.sessions -= 1
        self.link, self.key, self.branch, self.ended_at = None, None, None, None
        self.flight, self.past, self.ahead, self.untold = None, None, [], []

    def take(self, branch: Branch, key: RoundKey, now: float) -> None:
        """Makes a branch the next to be checked: from now on outcomes of it may be drafted for."""
        self.key, self.branch, self.ready_at = key, branch, now
        self.flight, self.ahead = (self.base, fence.extend(self.path_hash, branch.ids)), []

    def tell(
        self, link: DraftLink, key: RoundKey, ids: Ids[int], wish: Wish, *, verifying: int
    ) -> RoundKey:
        """Has the drafter told how a round ended, at once or with later ones; returns which.

        That it may rest is told at once: it would go on drafting ahead. What is not told now is
        `untold` afterwards.
        """
        if self.untold:  # all of it in one round, which checked nothing
            base, ids = key.base - len(self.untold), [*self.untold, *ids]
            key = RoundKey(base=base, path_hash=self.told_hash, accepted=0, bonus=ids[-1])
        resting = self.warm and not self.wanted and not wish.draft_tokens
        if resting and len(ids) < MOST_UNTOLD:
            self.untold = list(ids)
            return key
        self.untold, self.told_hash = [], self.path_hash
        link.commit(self.id, self.incarnation, key, ids, wish=wish, verifying=verifying)
        return key
