"""What the draft method needs of a drafter: the way to it, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from common.model.tree import Drawn
from common.sampling_params import SamplingParams
from verifier.drafting.acquaintance import Acquaintances
from verifier.drafting.meter import PairMeter


class RoundKey(NamedTuple):
    """Which round, and how it ended."""

    base: int
    """Committed tokens before it."""
    path_hash: int
    """Of those tokens and the chain checked on top."""
    accepted: int
    """Chain tokens that were right."""
    bonus: int
    """The token after them."""


@dataclass(frozen=True)
class Branch:
    """Draft tokens after an outcome."""

    ids: tuple[int, ...] = ()
    """They."""
    drawn: tuple[Drawn, ...] = ()
    """What each was drawn from, where that was asked for."""

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> Branch:
        """Its first tokens."""
        if length >= len(self.ids):
            return self
        return Branch(self.ids[: max(length, 0)], self.drawn[: max(length, 0)])


class Wave(Protocol):
    """Branches for outcomes of one round, as they came from a drafter.

    At most one of them is ever wanted, so none is looked at before.
    """

    @property
    def session(self) -> int:
        """Which session."""

    @property
    def incarnation(self) -> int:
        """Of its mirror."""

    @property
    def base(self) -> int:
        """Of the round; see `RoundKey`."""

    @property
    def path_hash(self) -> int:
        """Of the round; see `RoundKey`."""

    @property
    def came_at(self) -> float:
        """When, in seconds of the monotonic clock. The engine hears of it only after the step it is
        in, and that pass is no part of their way."""

    def find(self, accepted: int, bonus: int) -> Branch | None:
        """The branch for an outcome, if there is one.

        Raises:
            ValueError: It has ids that the target does not know, or continues one that never came.
        """


class Wish(NamedTuple):
    """What branches are wanted after an outcome."""

    draft_tokens: int = 0
    """Most tokens of each; 0 wants none."""
    fanout: int = 0
    """Bonus tokens to guess, for each accepted length, ahead of the next outcome."""
    least: tuple[float, ...] = ()
    """Of the first token of a branch, the second and so on, and of all further ones the last: the
    branch ends where the chance that all of it is right would fall below this. None has each as
    long as it may be."""


class Opening(NamedTuple):
    """A mirror to begin."""

    ids: Seq[int]
    """All that is committed."""
    sampling: SamplingParams
    """How to draft."""
    drawn: bool
    """Whether to say what tokens are drawn from."""
    salt: bytes
    """Who may share cached prefixes with it."""
    wish: Wish
    """Ahead of the next id."""


class Ended(NamedTuple):
    """A round that ended."""

    key: RoundKey
    """How it ended."""
    ids: Seq[int]
    """Tokens committed."""
    wish: Wish
    """After it."""
    verifying: int = 0
    """Of the branch that came ahead of this outcome, if one did, tokens that are checked now."""


class DraftLink(Protocol):
    """The way to one drafter. Calls come from the engine's thread and do not block."""

    known: Acquaintances
    """How fast this drafter answers, and how often it is right."""
    meter: PairMeter
    """What it has done."""

    @property
    def up(self) -> bool:
        """Whether messages can be sent."""

    @property
    def near(self) -> bool:
        """Whether the drafter is on this machine, on processors that this process may have, too."""

    def reach(self) -> bool:
        """The same; where they cannot, an attempt to connect is under way, or a pause before it."""

    def open(self, session: int, incarnation: int, opening: Opening) -> None:
        """Starts a mirror of a session."""

    def commit(self, session: int, incarnation: int, ended: Ended) -> None:
        """Tells how a round ended, or several as one, and what is wanted after it."""

    def close(self, session: int, incarnation: int) -> None:
        """Ends a mirror."""

    def flush(self) -> None:
        """Sends what has gathered, as one message."""

    def hang_up(self, reason: str) -> None:
        """Ends the stream; it is opened again once the drafter answers."""


LinkSource = Callable[[str], DraftLink | None]
"""The link to a drafter's address; makes it where there is none yet, None where none can be."""
