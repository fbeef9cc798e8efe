"""What the draft method keeps of each text: its mirror, the round under way, what came for it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from common import fence
from common.model.tree import TokenTree
from verifier.drafting.acquaintance import Acquaintance, TextKind
from verifier.drafting.length import DraftLength
from verifier.drafting.link import Branch, DraftLink, Ended, RoundKey, Wave
from verifier.proposer import Outcome
from verifier.sequence import Sequence

MOST_UNTOLD = 32
"""Tokens that gather while no draft is wanted; one message tells them, for each costs the step. A
session leaves its drafter then where no draft pays: under this load, or for any text."""


class Asked(NamedTuple):
    """A branch that was asked for."""

    key: RoundKey
    at: float


@dataclass
class RemoteMirror:
    """A drafter's mirror of a text, as far as it is known here, and what was asked of it."""

    link: DraftLink
    session: int
    incarnation: int
    drawn: bool  # the drafter says what it draws from
    length: DraftLength
    base: int  # committed ids
    path_hash: int  # of all of them
    on_trial: bool  # opened to tell whether drafts pay again
    probe: bool = field(init=False)  # and has not told yet
    warm: bool = False  # has caught up with the prompt
    key: RoundKey | None = None  # the outcome a branch is wanted for
    wanted: int = 0  # tokens asked for in that branch
    sent_at: float = 0.0
    deadline: float = 0.0
    branch: Branch | None = None
    ready_at: float = 0.0  # when a branch had come, or was no longer waited for
    late: Asked | None = None  # whose branch did not come in time
    proposed_at: float = 0.0
    ended_at: float | None = None  # when its last round ended
    flight: tuple[int, int] | None = field(init=False)  # base and path hash of `branch`'s round
    past: tuple[int, int] | None = None  # of the round before
    untold: list[int] = field(default_factory=list)  # committed, unknown to the drafter
    told_hash: int = field(init=False)  # of what is before them
    ahead: list[Wave] = field(default_factory=list)  # for outcomes of the round in flight

    def __post_init__(self) -> None:
        self.probe, self.told_hash = self.on_trial, self.path_hash
        self.flight = self.base, self.path_hash

    @property
    def known(self) -> Acquaintance:
        """What is known of the drafter with texts of this kind."""
        return self.link.known.of(TextKind.of(self.drawn, self.base))

    @property
    def waits(self) -> bool:
        """Whether a branch is asked for and has not come."""
        return self.key is not None and self.branch is None

    def end_round(self, length: int, outcome: Outcome, checked: Seq[int], right: int) -> RoundKey:
        """Goes on to the text after a round; returns how that ended.

        Args:
            length: Tokens of the text.
            outcome: Of the round.
            checked: Its nodes that are of this drafter.
            right: How many of them were right.
        """
        self.length.observe(len(checked), right)
        chain, ids = [outcome.tree.ids[node] for node in checked], outcome.ids
        path_hash = fence.extend(self.path_hash, chain)
        self.base, self.path_hash = length, fence.extend(self.path_hash, ids)
        return RoundKey(length - len(ids), path_hash, right, ids[-1])

    def take(self, branch: Branch, key: RoundKey, now: float) -> None:
        """Makes a branch the next to be checked: from now on outcomes of it may be drafted for."""
        self.key, self.branch, self.ready_at = key, branch, now
        self.flight, self.ahead = (self.base, fence.extend(self.path_hash, branch.ids)), []

    def tell(self, ended: Ended) -> RoundKey:
        """Has the drafter told how a round ended, at once or with later ones; returns which.

        That it may rest is told at once: it would go on drafting ahead. What is not told now is
        `untold` afterwards.
        """
        if self.untold:  # all of it in one round, which checked nothing
            ids, base = [*self.untold, *ended.ids], ended.key.base - len(self.untold)
            key = RoundKey(base=base, path_hash=self.told_hash, accepted=0, bonus=ids[-1])
            ended = ended._replace(key=key, ids=ids)
        resting = self.warm and not self.wanted and not ended.wish.draft_tokens
        if resting and len(ended.ids) < MOST_UNTOLD:
            self.untold = list(ended.ids)
        else:
            self.untold, self.told_hash = [], self.path_hash
            self.link.commit(self.session, self.incarnation, ended)
        return ended.key


@dataclass
class DraftSession:
    """A text and its mirror, if any."""

    id: int
    sequence: Sequence
    refused: dict[DraftLink, float] = field(default_factory=dict)  # not to be asked before
    incarnation: int = 0  # of its last mirror
    mirror: RemoteMirror | None = None
    tree: TokenTree | None = None  # what is being checked
    proposed: list[int] = field(default_factory=list)  # its nodes that a drafter sent

    @property
    def drawn(self) -> bool:
        """Whether a drafter is to say what it draws tokens from."""
        request = self.sequence.request
        return request.acceptance == "rejection" and not request.sampling.greedy

    @property
    def kind(self) -> TextKind:
        """That of the text, as long as it is by now."""
        return TextKind.of(self.drawn, len(self.sequence.ids))

    def unlink(self) -> None:
        """Forgets its mirror, and all that came of it."""
        if self.mirror is not None:
            self.mirror.link.meter.sessions -= 1
            self.mirror = None
