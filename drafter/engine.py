"""The drafter's engine: drafts for all its sessions in one batch, one token a step.

A step takes every mirror that has something to compute: catching up with what was committed,
or the next token of its branch. Sessions join and leave between steps. One thread calls
`step`; the others leave notes with `post`.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Ids

from common import fence
from common.errors import InvalidArgument
from common.inbox import Feed, Inbox, Note, StepMeter
from common.model.kv_cache import MAX_SALT_BYTES, KvLease
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.gauges import Gauges, Load
from drafter.item import Item
from drafter.mirror import Mirror
from drafter.mirrors import Mirrors
from drafter.outlook import Chances, ChoiceKind
from drafter.passes import Passes
from drafter.reply import Key, Outbox, Reply
from drafter.text import Extent, Text
from drafter.totals import Totals

_log = logging.getLogger(__name__)


class DraftEngine:
    """Mirrors sessions and drafts for them.

    Args:
        runner: The draft model.
        config: Sizes.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._config = config
        blocks = runner.pool.blocks
        self._extent = Extent.of(
            config.context_tokens,
            config.branch_tokens,
            runner.max_len,
            blocks.count * blocks.block_tokens,
        )
        self._mirrors = Mirrors(config, blocks, self._drop)
        self._inbox = Inbox()
        self._passes = Passes(runner, config.max_draft_tokens, self._inbox.fileno())
        self._replies: dict[Outbox, list[Reply]] = {}
        self._accepting = True
        self._meter, self._tokens, self._stale = StepMeter(), 0, 0
        self._gauges = Gauges(config)
        self._chances: dict[ChoiceKind, Chances] = defaultdict(Chances)
        self.totals = Totals()
        """What else was done so far."""

    # From any thread.

    def post(self, *notes: Note) -> None:
        """Has notes called on the engine's thread before the next step."""
        self._inbox.post(*notes)

    def wake(self) -> None:
        """Ends a `wait`."""
        self._inbox.wake()

    def watch(self, feed: Feed, over: Callable[[str], None]) -> None:
        """Reads a feed on the engine's thread from now on; see `Inbox.watch`."""
        self._inbox.watch(feed, over)

    def unwatch(self, feed: Feed) -> None:
        """Reads a feed no longer, and closes it."""
        self._inbox.unwatch(feed)

    def stop_accepting(self) -> None:
        """Refuses sessions from now on; those mirrored go on."""
        self._accepting = False

    @property
    def accepting(self) -> bool:
        """Whether sessions are mirrored."""
        return self._accepting

    @property
    def backlog(self) -> int:
        """Notes that wait for the next step."""
        return self._inbox.backlog

    @property
    def live(self) -> int:
        """Mirrors."""
        return len(self._mirrors)

    def load(self) -> Load:
        """How busy the engine is."""
        blocks = self._runner.pool.blocks
        mirrors = self._mirrors.items()
        drafting = sum(1 for _, mirror in mirrors if mirror.round is not None)
        now = time.monotonic()
        return Load(
            len(mirrors),
            drafting,
            blocks.count,
            blocks.available,
            self._meter.mean_ms,
            self._meter.steps,
            self._tokens,
            self._stale,
            self._gauges.occupancy.at(now),
            self._gauges.wait_s.at(now) * 1e3,
        )

    # On the engine's thread: what verifiers say.

    def open(
        self,
        outbox: Outbox,
        session: int,
        incarnation: int,
        ids: Ids[int],
        sampling: SamplingParams,
        drawn: bool = False,
        salt: bytes = b"",
        draft_tokens: int = 0,
        fanout: int = 0,
        least: tuple[float, ...] = (),
    ) -> None:
        """Starts a mirror, or restarts it.

        Args:
            outbox: Where to answer.
            session: The verifier's number for it.
            incarnation: The verifier's count of its Opens.
            ids: All that is committed.
            sampling: How to draft.
            drawn: Whether to say what tokens are drawn from.
            salt: Only sessions with the same share cached prefixes; up to 64 bytes.
            draft_tokens: Tokens wanted in branches ahead of the next id; 0 wants none.
            fanout: How many guesses of that id to draft for.
            least: See `Round`.
        """
        key = (outbox, session)
        self._mirrors.end(key)
        reason = self._unfit(ids, sampling, salt)
        if reason is not None:
            self._drop(key, incarnation, reason)
            return
        wants_drawn = drawn and not sampling.greedy
        blocks, loaded = self._runner.pool.blocks, self._runner.loaded
        mirror = Mirror(
            session,
            incarnation,
            sampling,
            Text(ids, self._extent, blocks, salt),
            KvLease(blocks),
            wants_drawn=wants_drawn,
        )
        mirror.chances = self._chances[mirror.kind]
        if sampling.repetition_penalty != 1.0:
            mirror.text.keep_seen(ids, loaded.vocab_size, loaded.device)
        self._mirrors.add(key, mirror)
        self.totals.opened += 1
        opened = Round(
            base=len(ids) - 1,
            path_hash=fence.EMPTY,
            accepted=0,
            ids=tuple(ids[-1:]),
            draft_tokens=draft_tokens,
            fanout=fanout,
            least=least,
        )
        opened = self._limited(opened)
        if opened.draft_tokens and opened.fanout and not wants_drawn:  # else no scores say for what
            mirror.await_next(opened)

    def commit(
        self,
        outbox: Outbox,
        session: int,
        incarnation: int,
        ended: Round,
        told_at: float | None = None,
    ) -> None:
        """Takes over a round's outcome and starts the branch after it.

        Args:
            outbox: Whose session.
            session: The verifier's number for it.
            incarnation: The verifier's count of its Opens.
            ended: The round.
            told_at: When its message came, in seconds of the monotonic clock; None where nobody
                looked.
        """
        key = (outbox, session)
        mirror = self._mirrors.find(key, incarnation)
        if mirror is None:
            self._stale += 1
            return
        text, vocab = mirror.text, self._runner.loaded.vocab_size
        if ended.base != text.length or not ended.ids or max(ended.ids) >= vocab:
            self._mirrors.give_up(key, "out of step with its verifier")
            return
        self._mirrors.touch(mirror)
        grown = len(text.ids) + len(ended.ids)
        if text.takes(len(ended.ids)) and not self._mirrors.reserve(key, mirror, grown):
            return
        moves = mirror.advance(self._limited(ended))
        mirror.chances = self._chances[mirror.kind]
        if moves:
            self._runner.move(moves)
        self._answer(key, mirror)
        mirror.told_at = told_at if mirror.due else None

    def close(self, outbox: Outbox, session: int, incarnation: int) -> None:
        """Ends a mirror; one that is gone, or was opened again since, is fine."""
        if self._mirrors.find((outbox, session), incarnation) is not None:
            self._mirrors.end((outbox, session))

    def forget(self, outbox: Outbox) -> None:
        """Ends all mirrors of a verifier that went away."""
        self._mirrors.forget(outbox)
        self._replies.pop(outbox, None)

    # The loop.

    def step(self) -> bool:
        """Computes one batch; False where nothing was to be done."""
        self._inbox.take()
        self._send()  # what was drafted ahead waits for no pass
        batch = self._schedule()
        if batch:
            self._gauges.stepping(batch, len(self._mirrors), time.monotonic())
            started = time.perf_counter()
            try:
                self._tokens += self._passes.run(batch)
                self._commit(batch)
            except Exception:  # one bad batch must not end the thread that owns the model
                _log.exception("draft step failed", extra={"sessions": len(batch)})
                for item in batch:
                    self._mirrors.give_up(item.key, "the engine failed")
            seconds = time.perf_counter() - started
            self._meter.add(seconds)
            self.totals.steps.observe(seconds)
        self._send()
        for item in batch:
            item.mirror.learn()
        return bool(batch)

    def wait(self, most_s: float = 0.5) -> None:
        """Sleeps until there is a note."""
        self._inbox.wait(most_s)

    def _schedule(self) -> list[Item]:
        """What to compute, mirror by mirror.

        Those with a branch to make come first, then those that catch up; where there are neither,
        branches go on ahead of their next outcome, as far as there is room.
        """
        mirrors = [item for item in self._mirrors.items() if item[1].due or item[1].round]
        due = [item for item in mirrors if item[1].due]
        return self._gather(due) or self._gather(mirrors)

    def _gather(self, mirrors: list[tuple[Key, Mirror]]) -> list[Item]:
        """What these mirrors have to compute, under the budget of a step."""
        budget = self._config.max_batch_tokens
        batch: list[Item] = []
        # A text that begins, or begins anew, takes all of a budget, and others wait for a branch.
        for key, mirror in sorted(mirrors, key=lambda item: _urgency(item[1])):
            item = self._item(key, mirror, budget) if key in self._mirrors else None
            if item is not None:
                batch.append(item)
                budget -= item.rows
        return [item for item in batch if item.key in self._mirrors]

    def _item(self, key: Key, mirror: Mirror, budget: int) -> Item | None:
        pending = mirror.text.pending
        if pending:
            rows = min(pending, budget)
            ready = rows and self._mirrors.reserve(key, mirror, mirror.text.computed + rows)
            ends = [mirror.root] if rows == pending else []
            return Item(key, mirror, committed=rows, ends=ends) if ready else None
        if not mirror.scratch.capacity and not self._mirrors.reserve_scratch(key, mirror):
            return None
        while mirror.unplanned:
            try:
                mirror.look_ahead()
            except Exception:  # as with a bad batch
                _log.exception("planning failed")
                self._mirrors.give_up(key, "the engine failed")
                return None
            self._answer(key, mirror)
        nodes = [node for node in mirror.frontier()[:budget] if mirror.place(node)]
        return Item(key, mirror, nodes=nodes, ends=nodes) if nodes else None

    def _commit(self, batch: list[Item]) -> None:
        """Grows the branches; hands over those that are finished."""
        for key, mirror, committed in ((item.key, item.mirror, item.committed) for item in batch):
            text = mirror.text
            text.computed += committed
            text.lease.publish(text.ids, text.computed)
            if not mirror.warm and text.pending == 0:
                mirror.warm = True
                warm = Reply(session=key[1], incarnation=mirror.incarnation, warm=text.length)
                self._reply(key[0], warm)
        for item in batch:
            for node in item.ends:
                item.mirror.chosen(node)
            self._answer(item.key, item.mirror)

    def _answer(self, key: Key, mirror: Mirror) -> None:
        """Hands finished branches over."""
        for branch in mirror.finished():
            self.totals.branches += 1
            reply = Reply(
                session=mirror.session,
                incarnation=mirror.incarnation,
                round=branch.outcome,
                ids=branch.ids,
                drawn=branch.drawn,
            )
            self._reply(key[0], reply)

    def _limited(self, ended: Round) -> Round:
        """A round with no more wanted after it than there may be."""
        fanout = min(ended.fanout, self._config.fanout)
        wanted = min(ended.draft_tokens, self._config.max_draft_tokens)
        least = ended.least[: self._config.max_draft_tokens]
        if not all(0 <= chance <= 1 for chance in least):  # nor are they numbers always
            least = ()
        return ended._replace(draft_tokens=wanted, fanout=fanout, least=least)

    def _unfit(self, ids: Ids[int], sampling: SamplingParams, salt: bytes) -> str | None:
        """Why a session cannot be mirrored; None where it can."""
        if not self._accepting:
            return "draining"
        vocab = self._runner.loaded.vocab_size
        if not ids or max(ids) >= vocab:
            return "its ids do not fit this model"
        if len(salt) > MAX_SALT_BYTES:
            return f"its cache salt is longer than {MAX_SALT_BYTES} bytes"
        try:
            sampling.validate(vocab)
        except InvalidArgument as error:
            return str(error)
        return None

    def _drop(self, key: Key, incarnation: int, reason: str) -> None:
        self.totals.dropped += 1
        outbox, session = key
        self._reply(outbox, Reply(session=session, incarnation=incarnation, dropped=reason))

    def _reply(self, outbox: Outbox, reply: Reply) -> None:
        self._replies.setdefault(outbox, []).append(reply)

    def _send(self) -> None:
        for outbox, replies in self._replies.items():
            outbox(replies)
        self._replies = {}


def _urgency(mirror: Mirror) -> tuple[bool, int]:
    """Those with a branch to make come first, of these those with least to catch up with."""
    return mirror.round is None, mirror.text.pending
