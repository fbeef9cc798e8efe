"""A round's outcome, and the tokens that are drafted after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from common.model.tree import Drawn
from drafter.nodes import Node
from drafter.outlook import Chances


class Round(NamedTuple):
    """A round that ended at the verifier, as its Commit tells it."""

    base: int
    """Committed tokens before it."""
    path_hash: int
    """Of those tokens and the chain checked on top."""
    accepted: int
    """Chain tokens that were right."""
    ids: tuple[int, ...]
    """Tokens committed: the accepted ones and the bonus."""
    draft_tokens: int
    """Tokens wanted in a branch; 0 wants none."""
    verifying: int = 0
    """Tokens of this outcome's branch that the verifier has already; it wants none for it then."""
    fanout: int = 0
    """Bonus guesses to draft for ahead of the next outcome, for each accepted length."""
    least: tuple[float, ...] = ()
    """Of a branch's first token, the second and so on, and of all further ones the last: it ends
    where the chance that all of it is right would fall below this. None has it go on."""

    def least_of(self, token: int) -> float:
        """Of the token after so many."""
        if token < len(self.least):
            return self.least[token]
        return self.least[-1] if self.least else 0.0


@dataclass(eq=False)
class Branch:
    """Tokens in the making after an outcome."""

    outcome: Round
    """That outcome."""
    leaf: Node
    """The node of its last token, the bonus at first; while it lacks nothing, one that may have the
    last of them in its tail."""
    wanted: int
    """Tokens it is to have after the bonus; as many as it has where more are not worth it."""
    ids: list[int] = field(default_factory=list)
    """Tokens after the bonus."""
    right: float = 1.0
    """Chance that all of them are right."""
    _in_tail: int = 0  # of the leaf

    @property
    def lacking(self) -> int:
        """Tokens it is to have that are not chosen yet."""
        return self.wanted - len(self.ids)

    def grow(self, chances: Chances) -> None:
        """Extends it by what is chosen already, by one token at least."""
        while self.lacking and self.leaf.choice is not None:
            self._in_tail = self._take(chances)
            if self.lacking:
                self._descend()

    def nodes(self) -> list[Node]:
        """From the root's child down to its last token."""
        self._descend()
        return self.leaf.path()

    def _take(self, chances: Chances) -> int:
        """Takes what is chosen after the leaf as long as it is worth it; returns how much."""
        ids, before = self.ids, len(self.ids)
        chance_of, least_of = chances.of_lead, self.outcome.least_of
        for token, lead in self.leaf.choices():
            right = self.right * chance_of(lead)
            enough = right < least_of(len(ids))
            if not enough or not ids:
                ids.append(token)
                self.right = right
            if enough:
                self.wanted = len(ids)
            if len(ids) >= self.wanted:
                break
        return len(ids) - before

    def _descend(self) -> None:
        for token in self.ids[len(self.ids) - self._in_tail :]:
            self.leaf = self.leaf.child(token)
        self._in_tail = 0


class Limit(NamedTuple):
    """How far to go on with a branch."""

    least: tuple[float, ...]
    """See `Round`."""
    tokens: int = 0
    """It has so many; -1 where the token before its first is still to be chosen."""
    right: float = 1.0
    """Chance that all of them are right."""


class Finished(NamedTuple):
    """A branch to send."""

    outcome: Round
    """What it continues."""
    ids: tuple[int, ...]
    """Its tokens."""
    drawn: tuple[Drawn, ...]
    """What each was drawn from; empty where that is not wanted, or not known of all."""
