"""What verifiers say of sessions: that one begins, how a round of it ended, that it is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from typing import NamedTuple

from common import fence
from common.errors import InvalidArgument
from common.model.kv_cache import MAX_SALT_BYTES, KvLease
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.mirror import Mirror
from drafter.mirrors import Mirrors
from drafter.outlook import Chances, ChoiceKind
from drafter.reply import Outbox, Replies
from drafter.text import Extent, Text
from drafter.totals import Totals

_FOREIGN = "its ids do not fit this model"
"""Why a text is not drafted for that has ids which only the target's vocabulary is padded with."""


class Opening(NamedTuple):
    """A session to mirror, as its Open tells it."""

    ids: Seq[int]
    """All that is committed."""
    sampling: SamplingParams
    """How to draft."""
    drawn: bool = False
    """Whether to say what tokens are drawn from."""
    salt: bytes = b""
    """Only sessions with the same share cached prefixes; up to 64 bytes."""
    draft_tokens: int = 0
    """Tokens wanted in branches ahead of the next id; 0 wants none."""
    fanout: int = 0
    """How many guesses of that id to draft for."""
    least: tuple[float, ...] = ()
    """See `Round`."""
    vocab_size: int = 0
    """Ids the verifier's model has, others are not drafted; 0 for no fewer than the draft model."""

    def as_round(self) -> Round:
        """As if a round had ended with the last id."""
        return Round(
            base=len(self.ids) - 1,
            path_hash=fence.EMPTY,
            accepted=0,
            ids=tuple(self.ids[-1:]),
            draft_tokens=self.draft_tokens,
            fanout=self.fanout,
            least=self.least,
        )


class Sessions:
    """Does to mirrors what verifiers say; on the engine's thread.

    Args:
        runner: The draft model.
        config: Sizes.
        mirrors: Of all sessions.
        replies: Where to answer.
        totals: Where to count.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        mirrors: Mirrors,
        replies: Replies,
        totals: Totals,
    ) -> None:
        self._runner, self._config = runner, config
        self._mirrors, self._replies, self._totals = mirrors, replies, totals
        blocks = runner.pool.blocks
        self._extent = Extent.of(
            config.context_tokens,
            config.branch_tokens,
            runner.max_len,
            blocks.count * blocks.block_tokens,
        )
        self._chances: dict[ChoiceKind, Chances] = defaultdict(Chances)
        self.accepting = True
        """Whether sessions are mirrored; those that are go on. Any thread may change it."""
        self.stale = 0
        """Commits dropped: of no mirror, or of another incarnation of it."""

    def open(self, outbox: Outbox, session: int, incarnation: int, opening: Opening) -> None:
        """Starts a mirror, or restarts it.

        Args:
            outbox: Where to answer.
            session: The verifier's number for it.
            incarnation: The verifier's count of its Opens.
            opening: What to mirror.
        """
        key, ids, sampling = (outbox, session), opening.ids, opening.sampling
        self._mirrors.end(key)
        reason = self._unfit(opening)
        if reason is not None:
            self._replies.dropped(key, incarnation, reason)
            return
        wants_drawn = opening.drawn and not sampling.greedy
        blocks, loaded = self._runner.pool.blocks, self._runner.loaded
        mirror = Mirror(
            incarnation,
            sampling,
            Text(ids, self._extent, blocks, opening.salt),
            KvLease(blocks),
            wants_drawn=wants_drawn,
            vocab_size=opening.vocab_size if opening.vocab_size < loaded.vocab_size else 0,
        )
        mirror.chances = self._chances[mirror.kind]
        if sampling.penalises:
            mirror.text.keep_seen(ids, loaded.vocab_size, loaded.device)
        self._mirrors.add(key, mirror)
        self._totals.opened += 1
        opened = self._limited(opening.as_round())
        if opened.draft_tokens and opened.fanout and not wants_drawn:  # else no scores say for what
            mirror.await_next(opened)

    def commit(
        self,
        outbox: Outbox,
        session: int,
        incarnation: int,
        ended: Round,
        told_at: float,
    ) -> None:
        """Takes over a round's outcome and starts the branch after it.

        Args:
            outbox: Whose session.
            session: The verifier's number for it.
            incarnation: The verifier's count of its Opens.
            ended: The round.
            told_at: When its message came, in seconds of the monotonic clock.
        """
        key = (outbox, session)
        mirror = self._mirrors.find(key, incarnation)
        if mirror is None:
            self.stale += 1
            return
        text, vocab = mirror.text, self._runner.loaded.vocab_size
        if ended.base != text.length or not ended.ids:
            self._mirrors.give_up(key, "out of step with its verifier")
            return
        if max(ended.ids) >= vocab:
            self._mirrors.give_up(key, _FOREIGN)
            return
        self._mirrors.touch(mirror)
        grown = len(text.ids) + len(ended.ids)
        if text.takes(len(ended.ids)) and not self._mirrors.reserve(key, mirror, grown):
            return
        moves = mirror.advance(self._limited(ended))
        mirror.chances = self._chances[mirror.kind]
        if moves:
            self._runner.move(moves)
        self._replies.branches(key, mirror)
        mirror.told_at = told_at if mirror.due else None

    def close(self, outbox: Outbox, session: int, incarnation: int) -> None:
        """Ends a mirror; one that is gone, or was opened again since, is fine."""
        if self._mirrors.find((outbox, session), incarnation) is not None:
            self._mirrors.end((outbox, session))

    def forget(self, outbox: Outbox) -> None:
        """Ends all mirrors of a verifier that went away."""
        self._mirrors.forget(outbox)
        self._replies.forget(outbox)

    def _limited(self, ended: Round) -> Round:
        """A round with no more wanted after it than there may be."""
        fanout = min(ended.fanout, self._config.fanout)
        wanted = min(ended.draft_tokens, self._config.max_draft_tokens)
        least = ended.least[: self._config.max_draft_tokens]
        if not all(0 <= chance <= 1 for chance in least):  # nor are they numbers always
            least = ()
        return ended._replace(draft_tokens=wanted, fanout=fanout, least=least)

    def _unfit(self, opening: Opening) -> str | None:
        """Why a session cannot be mirrored; None where it can."""
        if not self.accepting:
            return "draining"
        vocab = self._runner.loaded.vocab_size
        if not opening.ids or max(opening.ids) >= vocab:
            return _FOREIGN
        if len(opening.salt) > MAX_SALT_BYTES:
            return f"its cache salt is longer than {MAX_SALT_BYTES} bytes"
        try:
            opening.sampling.validate(vocab)
        except InvalidArgument as error:
            return str(error)
        return None
