"""What the draft method keeps of each text: its mirror, the round under way, what came for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from common import fence
from common.model.tree import TokenTree
from verifier.methods.draft_length import DraftLength
from verifier.methods.draft_link import Branch, DraftLink, RoundKey, Wave


class Asked(NamedTuple):
    """A branch that was asked for."""

    key: RoundKey
    at: float


@dataclass
class DraftSession:
    """A text and its mirror, if any."""

    id: int
    length: DraftLength
    base: int = 0  # committed ids, while there is a link
    path_hash: int = fence.EMPTY  # of all of them
    incarnation: int = 0
    link: DraftLink | None = None
    warm: bool = False  # the mirror has caught up with the prompt
    probe: bool = False  # it is to tell whether drafts pay again, and has not yet
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

    def unlink(self) -> None:
        """Forgets a drafter, and all it has sent."""
        if self.link is not None:
            self.link.meter.sessions -= 1
        self.link, self.key, self.branch, self.ended_at = None, None, None, None
        self.flight, self.past, self.ahead, self.untold = None, None, [], []
