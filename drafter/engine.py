"""The drafter's engine: drafts for all its sessions in one batch, one token a step.

A step takes every mirror that has something to compute: catching up with what was committed,
or the next token of its branch. Sessions join and leave between steps. One thread calls
`step`; the others leave notes with `post`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace

import torch

from common import fence
from common.errors import InvalidArgument
from common.inbox import Inbox, Note, StepMeter
from common.model.batch import Segment
from common.model.kv_cache import KvLease
from common.model.runner import Runner
from common.model.sampling import Row, sample
from common.sampling_params import SamplingParams
from drafter.config import EngineConfig
from drafter.mirror import Mirror, Round, mark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """News of one session for its verifier: a branch, a warm mirror, or the end of one."""

    session: int
    """The verifier's number for the session."""
    incarnation: int
    """Of its mirror."""
    round: Round | None = None
    """Set with `ids`: the round whose outcome they continue."""
    ids: tuple[int, ...] = ()
    """Draft tokens."""
    warm: int | None = None
    """Set when the first prefill is done: tokens in the mirror."""
    dropped: str | None = None
    """Set when the mirror was given up: why."""


Outbox = Callable[[list[Reply]], None]
"""Takes what one step has for one verifier; called on the engine's thread, must not block."""

Key = tuple[Outbox, int]


@dataclass(frozen=True)
class Load:
    """How busy the engine is."""

    sessions: int
    """Mirrors."""
    drafting: int
    """Mirrors with a branch in the making."""
    blocks_total: int
    """Cache blocks."""
    blocks_free: int
    """Blocks free or evictable."""
    step_ms: float
    """Moving average of one step, in milliseconds."""
    steps: int
    """Steps so far."""
    tokens: int
    """Tokens drafted so far."""
    stale: int
    """Commits dropped so far: of no mirror, or of another incarnation of it."""


class DraftEngine:
    """Mirrors sessions and drafts for them.

    Args:
        runner: The draft model.
        config: Sizes.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._config = config
        self._mirrors: dict[Key, Mirror] = {}
        self._inbox = Inbox()
        self._replies: dict[Outbox, list[Reply]] = {}
        self._accepting = True
        self._messages = itertools.count()
        self._meter, self._tokens, self._stale = StepMeter(), 0, 0

    # From any thread.

    def post(self, *notes: Note) -> None:
        """Has notes called on the engine's thread before the next step."""
        self._inbox.post(*notes)

    def wake(self) -> None:
        """Ends a `wait`."""
        self._inbox.wake()

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
        mirrors = list(self._mirrors.values())
        drafting = sum(1 for mirror in mirrors if mirror.round is not None)
        return Load(
            len(mirrors),
            drafting,
            blocks.count,
            blocks.available,
            self._meter.mean_ms,
            self._meter.steps,
            self._tokens,
            self._stale,
        )

    # On the engine's thread: what verifiers say.

    def open(
        self,
        outbox: Outbox,
        session: int,
        incarnation: int,
        ids: Ids[int],
        sampling: SamplingParams,
    ) -> None:
        """Starts a mirror, or restarts it."""
        self._end((outbox, session))
        vocab = self._runner.loaded.vocab_size
        reason = self._unfit(ids, sampling)
        if reason is not None:
            self._drop(outbox, session, incarnation, reason)
            return
        while len(self._mirrors) >= self._config.max_sessions:
            self._give_up(self._idlest(), "too many sessions")
        lease = KvLease(self._runner.pool.blocks)
        mirror = Mirror(session, incarnation, sampling, lease, list(ids), used=next(self._messages))
        mirror.computed = lease.reuse_prefix(mirror.ids)
        mirror.path_hash = fence.extend(fence.EMPTY, mirror.ids)
        if sampling.repetition_penalty != 1.0:
            mirror.seen = torch.zeros(vocab, dtype=torch.bool, device=self._runner.loaded.device)
            mark(mirror.seen, mirror.ids)
        self._mirrors[outbox, session] = mirror

    def commit(self, outbox: Outbox, session: int, incarnation: int, ended: Round) -> None:
        """Takes over a round's outcome and starts the branch after it."""
        mirror = self._mirrors.get((outbox, session))
        if mirror is None or mirror.incarnation != incarnation:
            self._stale += 1
            return
        vocab = self._runner.loaded.vocab_size
        if ended.base != len(mirror.ids) or not ended.ids or max(ended.ids) >= vocab:
            self._give_up((outbox, session), "out of step with its verifier")
            return
        room = self._runner.max_len - len(mirror.ids) - len(ended.ids)
        if room < 0:
            self._give_up((outbox, session), "longer than this model allows")
            return
        mirror.used = next(self._messages)
        most = min(room, self._config.max_draft_tokens)
        mirror.advance(replace(ended, draft_tokens=min(ended.draft_tokens, most)), room)
        if mirror.complete:
            self._answer((outbox, session), mirror)

    def close(self, outbox: Outbox, session: int, incarnation: int) -> None:
        """Ends a mirror; one that is gone, or was opened again since, is fine."""
        mirror = self._mirrors.get((outbox, session))
        if mirror is not None and mirror.incarnation == incarnation:
            self._end((outbox, session))

    def forget(self, outbox: Outbox) -> None:
        """Ends all mirrors of a verifier that went away."""
        for key in list(self._mirrors):
            if key[0] == outbox:
                self._end(key)
        self._replies.pop(outbox, None)

    # The loop.

    def step(self) -> bool:
        """Computes one batch; False where nothing was to be done."""
        self._inbox.take()
        self._send()  # what was drafted ahead waits for no pass
        batch = self._schedule()
        if batch:
            started = time.perf_counter()
            try:
                self._commit(batch, self._run(batch))
            except Exception:  # one bad batch must not end the thread that owns the model
                _log.exception("draft step failed", extra={"sessions": len(batch)})
                for key, _ in batch:
                    self._give_up(key, "the engine failed")
            self._meter.add(time.perf_counter() - started)
        self._send()
        return bool(batch)

    def wait(self, most_s: float = 0.5) -> None:
        """Sleeps until there is a note."""
        self._inbox.wait(most_s)

    def _schedule(self) -> list[tuple[Key, int]]:
        """Mirrors to compute and how many rows of each.

        Those with a branch to make come first, then those that catch up; where there are neither,
        branches go on ahead of their next outcome, as far as the cache has room.
        """
        budget = self._config.max_batch_tokens
        batch = []
        work = [item for item in self._mirrors.items() if item[1].pending and not item[1].sated]
        due = [item for item in work if not item[1].answered]
        for key, mirror in sorted(due or work, key=lambda item: item[1].round is None):
            rows = min(mirror.pending, budget)
            if rows and key in self._mirrors and self._reserve(key, mirror, rows):
                batch.append((key, rows))
                budget -= rows
        return [(key, rows) for key, rows in batch if key in self._mirrors]

    def _run(self, batch: list[tuple[Key, int]]) -> list[int]:
        """One forward pass; the next token of each mirror that has computed all it has."""
        segments, wanted = [], []
        for key, count in batch:
            mirror = self._mirrors[key]
            sampled = mirror.round is not None and count == mirror.pending
            last = [count - 1] if sampled else []
            slots = mirror.lease.slots
            segments.append(Segment(mirror.rows(count), mirror.computed, slots, wanted=last))
            if sampled:
                position = len(mirror.ids) + len(mirror.drafted)
                path = tuple(mirror.drafted) if mirror.seen is not None else ()
                wanted.append(
                    Row(params=mirror.sampling, position=position, seen=mirror.seen, path=path)
                )
        logits = self._runner.forward(segments)
        return sample(logits[: len(wanted)], wanted).tolist() if wanted else []

    def _commit(self, batch: list[tuple[Key, int]], tokens: list[int]) -> None:
        """Grows the branches; hands over those that are finished."""
        fresh = iter(tokens)
        for key, count in batch:
            mirror = self._mirrors[key]
            sampled = mirror.round is not None and count == mirror.pending
            mirror.computed += count
            mirror.lease.publish(mirror.ids, min(mirror.computed, len(mirror.ids)))
            if not mirror.warm and mirror.pending == 0:
                mirror.warm = True
                self._reply(
                    key[0],
                    Reply(session=key[1], incarnation=mirror.incarnation, warm=len(mirror.ids)),
                )
            if sampled:
                mirror.drafted.append(next(fresh))
                self._tokens += 1
                if mirror.complete:
                    self._answer(key, mirror)
                elif (ahead := mirror.next_round()) is not None:
                    mirror.sent_ahead = ahead
                    self._branch(mirror, key[0], ahead, mirror.drafted[len(ahead.ids) :])

    def _answer(self, key: Key, mirror: Mirror) -> None:
        """Hands a branch over."""
        assert mirror.round is not None
        mirror.answered = True
        self._branch(mirror, key[0], mirror.round, mirror.drafted[: mirror.round.draft_tokens])

    def _branch(self, mirror: Mirror, outbox: Outbox, outcome: Round, ids: Ids[int]) -> None:
        reply = Reply(
            session=mirror.session, incarnation=mirror.incarnation, round=outcome, ids=tuple(ids)
        )
        self._reply(outbox, reply)

    def _unfit(self, ids: Ids[int], sampling: SamplingParams) -> str | None:
        """Why a session cannot be mirrored; None where it can."""
        if not self._accepting:
            return "draining"
        vocab = self._runner.loaded.vocab_size
        if not ids or max(ids) >= vocab or len(ids) >= self._runner.max_len:
            return "its ids do not fit this model"
        try:
            sampling.validate(vocab)
        except InvalidArgument as error:
            return str(error)
        return None

    def _reserve(self, key: Key, mirror: Mirror, rows: int) -> bool:
        while not mirror.lease.reserve(mirror.computed + rows):
            if mirror.answered:  # going ahead is not worth another's mirror
                return False
            victim = self._idlest()
            self._give_up(victim, "out of cache blocks")
            if victim == key:
                return False
        return True

    def _idlest(self) -> Key:
        return min(self._mirrors, key=lambda key: self._mirrors[key].used)

    def _give_up(self, key: Key, reason: str) -> None:
        mirror = self._end(key)
        if mirror is not None:
            self._drop(key[0], key[1], mirror.incarnation, reason)

    def _end(self, key: Key) -> Mirror | None:
        mirror = self._mirrors.pop(key, None)
        if mirror is not None:
            mirror.lease.release()
        return mirror

    def _drop(self, outbox: Outbox, session: int, incarnation: int, reason: str) -> None:
        self._reply(outbox, Reply(session=session, incarnation=incarnation, dropped=reason))

    def _reply(self, outbox: Outbox, reply: Reply) -> None:
        self._replies.setdefault(outbox, []).append(reply)

    def _send(self) -> None:
        for outbox, replies in self._replies.items():
            outbox(replies)
        self._replies = {}
