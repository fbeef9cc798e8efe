"""A round's outcome, and the tokens that are drafted after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    least: float = 0.0
    """A branch ends where the chance that all of it is right would fall below this."""


@dataclass(eq=False)
class Branch:
    """Tokens in the making after an outcome."""

    outcome: Round
    """That outcome."""
    leaf: Node
    """Its last node; the bonus at first."""
    wanted: int
    """Tokens it is to have after the bonus; as many as it has where more are not worth it."""
    length: int = 0
    """Tokens after the bonus."""
    right: float = 1.0
    """Chance that all of them are right."""

    @property
    def lacking(self) -> int:
        """Tokens it is to have that are not chosen yet."""
        return self.wanted - self.length

    def grow(self, chances: Chances) -> None:
        """Extends it by what is chosen already, by one token at least."""
        while self.lacking and self.leaf.choice is not None:
            right = self.right * chances.of_choice(self.leaf)
            enough = right < self.outcome.least
            if not enough or not self.length:
                self.leaf, self.right = self.leaf.child(self.leaf.choice), right
                self.length += 1
            if enough:
                self.wanted = self.length


class Finished(NamedTuple):
    """A branch to send."""

    outcome: Round
    """What it continues."""
    nodes: tuple[Node, ...]
    """Its tokens; each was chosen after its parent."""
