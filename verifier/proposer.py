"""What a speculation method is to the engine.

A proposer adds nodes to a token tree below the last committed token and learns what became of
them. All calls come from the engine's thread; one that raises costs drafts, and no text. A new
method is one file in `verifier.methods`, one line in its registry, and its name in
`gateway.validation`, which so tells a typing error from what a deployment lacks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from common.model.output import Output
from common.model.tree import TokenTree
from verifier.sequence import Sequence


class Outcome(NamedTuple):
    """How a round ended."""

    tree: TokenTree
    """What was checked: the nodes of all proposers of the sequence. Another tree than the one
    they were added to where the cache had no room for it, or the sequence had to give its cache
    back; indices of proposed nodes mean nothing then."""
    choices: Seq[int]
    """The target's own choice after each node, `[nodes]`."""
    accepted: Seq[int]
    """Nodes committed, from the root's child down."""
    ids: Seq[int]
    """Tokens committed: those of the accepted nodes, and one more unless the text ended. Of several
    rounds in which nothing was proposed, all of theirs."""
    output: Output | None = None
    """Of the pass that checked it; None where there were several rounds."""
    at: int = 0
    """Row of the last accepted node in it."""
    wanted: bool = True
    """Whether this proposer is to draft in the next round."""

    @property
    def state(self) -> Tensor:
        """The target's last state, normed, at the last accepted node, `[hidden]`."""
        assert self.output is not None
        return self.output.states[self.at]


class Proposer(Protocol):
    """Drafts for the sequences of one method."""

    def open(self, sequence: Sequence) -> None:
        """A sequence joins; its prompt is committed, nothing is computed yet."""

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether to run the sequence now rather than wait for its draft: always, where that is
        made here.

        Args:
            sequence: A decoding sequence.
            now: Seconds, of the monotonic clock.
        """
        return True

    def rests(self, sequence: Sequence) -> bool:
        """Whether it is going to propose nothing, and may hear of several rounds as one: never,
        where it learns from each round by itself.

        Args:
            sequence: A decoding sequence that is ready.
        """
        return False

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds what is to be checked next.

        Args:
            sequence: A decoding sequence that is ready.
            tree: Its root is the last committed token; other proposers may have added to it.
            budget: Most nodes to add.
        """

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """A round ended and its tokens are committed.

        Beside a drafter, members of hybrids do not hear of every round.
        """

    def close(self, sequence: Sequence) -> None:
        """A sequence leaves; one that did not get in, because `open` failed, does so, too."""


@runtime_checkable
class Remote(Protocol):
    """A proposer whose drafts come from elsewhere, and ahead of being asked for.

    Left out for a round it is still at work in the next one, and when it is back it has drafted
    nothing ahead.
    """

    def asked(self, sequence: Sequence) -> bool:
        """Whether a draft is to come for the next round, after the last was observed; not where
        nobody drafts, or is asked for nothing."""

    def flush(self) -> None:
        """Sends what the rounds of a step gave to tell."""


@runtime_checkable
class Waiting(Protocol):
    """A proposer that is not always ready."""

    def deadline(self, since: float) -> float | None:
        """When the first of the sequences that waited then no longer does; None where none did.

        One whose wait was over then was ready; it may wait for something else, as for room.

        Args:
            since: When they were last asked whether they are ready, in seconds of the monotonic
                clock, as is what is returned.
        """


@runtime_checkable
class Reader(Protocol):
    """A proposer that drafts from the target's states at the layers the runner taps."""

    def reads(self, sequence: Sequence, position: int) -> bool:
        """Whether it wants to see rows of a sequence, any, from a position on."""

    def read(self, sequence: Sequence, position: int, states: Tensor) -> None:
        """Rows that it wants to see were computed, and the token after each is committed, but after
        the last of a text that ended with it.

        Args:
            sequence: Whose.
            position: Of the first row; the others follow.
            states: Of the rows, `[n, taps * hidden]`.
        """


@runtime_checkable
class Foreseeing(Protocol):
    """A proposer that knows what it expects before it is asked to propose."""

    def foresee(self, sequence: Sequence) -> float:
        """Draft tokens expected of the next round, after the last was observed."""
