"""A disposable copy of one session, and the draft being made for it."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from common import fence
from common.model.kv_cache import KvLease
from common.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Round:
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
    """Tokens wanted in the branch; 0 wants none."""
    verifying: int = 0
    """Tokens of the branch that the verifier has already, sent ahead; it wants none then."""

    def same_outcome(self, other: Round) -> bool:
        """Whether it is the same round with the same end."""
        mine = (self.base, self.path_hash, self.accepted, self.ids)
        return mine == (other.base, other.path_hash, other.accepted, other.ids)


@dataclass
class Mirror:
    """One session's mirror.

    Invariant: the cache holds the first `computed` of `ids + drafted`.
    """

    session: int
    """The verifier's number for it."""
    incarnation: int
    """The verifier's count of its Opens."""
    sampling: SamplingParams
    """The request's sampling: the same noise gives the same choices."""
    lease: KvLease
    """Its share of the cache."""
    ids: list[int]
    """Committed ids."""
    seen: Tensor | None = None
    """Which ids occur in them, `[V]`; kept where a repetition penalty needs it."""
    computed: int = 0
    """Ids and drafted tokens with keys and values in the cache."""
    drafted: list[int] = field(default_factory=list)
    """The branch, and what was drafted behind it ahead of the next outcome."""
    round: Round | None = None
    """The outcome it continues; None where nothing is to be drafted."""
    answered: bool = False
    """Whether the branch was handed over."""
    sent_ahead: Round | None = None
    """The likeliest next round, once the branch after it was handed over, too."""
    path_hash: int = fence.EMPTY
    """Of the committed ids."""
    room: int = 0
    """Positions the model has left after the committed ids."""
    warm: bool = False
    """Whether the first prefill is done."""
    used: int = 0
    """Number of the last message; the least recently used mirror is dropped first."""

    def rows(self, count: int) -> list[int]:
        """The next `count` tokens to compute."""
        end = self.computed + count
        known = len(self.ids)
        return (
            self.ids[self.computed : end]
            + self.drafted[max(self.computed - known, 0) : max(end - known, 0)]
        )

    @property
    def pending(self) -> int:
        """Tokens without keys and values that the next pass should compute."""
        return len(self.ids) + len(self.drafted) - self.computed

    @property
    def complete(self) -> bool:
        """Whether the branch has the length that is wanted and is not handed over yet."""
        return (
            self.round is not None
            and not self.answered
            and len(self.drafted) >= self.round.draft_tokens
        )

    def next_round(self) -> Round | None:
        """The likeliest next round, once the branch behind it is complete and not sent yet.

        The verifier checks the branch it was given; all of it is right; the bonus is the token
        drafted behind it.
        """
        if self.round is None or self.sent_ahead is not None or not self.answered:
            return None
        length = self.round.draft_tokens
        if len(self.drafted) < 2 * length + 1:
            return None
        return Round(
            base=len(self.ids),
            path_hash=fence.extend(self.path_hash, self.drafted[:length]),
            accepted=length,
            ids=tuple(self.drafted[: length + 1]),
            draft_tokens=length,
        )

    @property
    def sated(self) -> bool:
        """Whether nothing more is to be drafted, not even ahead.

        Ahead of the next outcome goes the likeliest one: the branch is right to its end, and the
        bonus is the token this model chooses after it. That token and a branch behind it.
        """
        if self.round is None:
            return False
        return len(self.drafted) >= min(2 * self.round.draft_tokens + 1, self.room)

    def advance(self, ended: Round, room: int) -> None:
        """Takes over a round's outcome; keeps what was drafted right, cache and tokens.

        Args:
            ended: The round.
            room: Positions the model has left after it.
        """
        right = 0
        for mine, theirs in zip(self.drafted, ended.ids, strict=False):
            if mine != theirs:
                break
            right += 1
        wanted = ended.verifying or ended.draft_tokens
        foreseen = right == len(ended.ids) and wanted > 0
        self.computed = min(
            self.computed, len(self.ids) + (len(self.drafted) if foreseen else right)
        )
        self.ids.extend(ended.ids)
        self.path_hash = fence.extend(self.path_hash, ended.ids)
        self.drafted = self.drafted[right:] if foreseen else []
        self.answered = False
        if foreseen and self.sent_ahead is not None and self.sent_ahead.same_outcome(ended):
            self.answered = True  # the verifier has the branch, or will in a moment
            wanted = min(wanted, self.sent_ahead.draft_tokens)
        self.round = replace(ended, draft_tokens=wanted) if wanted else None
        self.sent_ahead, self.room = None, room
        if self.seen is not None:
            mark(self.seen, ended.ids)


def mark(seen: Tensor, ids: Ids[int]) -> None:
    """Notes that ids occur."""
    seen[torch.tensor(ids, dtype=torch.int64, device=seen.device)] = True
