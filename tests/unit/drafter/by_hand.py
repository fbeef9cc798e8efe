"""A verifier's end of the stream, by hand, and a drafter's books."""

from __future__ import annotations

import random

from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.engine import DraftEngine
from drafter.reply import Reply
from drafter.sessions import Opening
from tests.tiny_models import VOCAB


class Verifier:
    """One verifier's end of the stream, by hand."""

    def __init__(self, engine: DraftEngine) -> None:
        self.engine = engine
        self.replies: list[Reply] = []

    def receive(self, replies: list[Reply]) -> None:
        self.replies.extend(replies)

    def open(
        self,
        session: int,
        ids: list[int],
        incarnation: int = 1,
        sampling: SamplingParams | None = None,
        wanted: int = 0,
        fanout: int = 0,
        *,
        drawn: bool = False,
    ) -> None:
        opening = Opening(
            ids, sampling or SamplingParams(), drawn, draft_tokens=wanted, fanout=fanout
        )
        self.engine.sessions.open(self.receive, session, incarnation, opening)

    def commit(
        self,
        session: int,
        base: int,
        ids: list[int],
        wanted: int = 4,
        incarnation: int = 1,
        path_hash: int = 7,
        verifying: int = 0,
        fanout: int = 1,
        least: tuple[float, ...] = (),
    ) -> None:
        ended = Round(
            base=base,
            path_hash=path_hash,
            accepted=len(ids) - 1,
            ids=tuple(ids),
            draft_tokens=wanted,
            verifying=verifying,
            fanout=fanout,
            least=least,
        )
        self.engine.sessions.commit(self.receive, session, incarnation, ended, told_at=0.0)

    def settle(self) -> list[Reply]:
        while self.engine.step():
            pass
        replies, self.replies = self.replies, []
        return replies


def check_slots(engine: DraftEngine, positions: int) -> None:
    """Every scratch position is one node's, or free."""
    for _, mirror in engine._mirrors.items():
        if mirror.scratch.capacity:
            nodes = (mirror.root, *mirror.root.below())
            held = [slot for node in nodes for slot in node.slots()]
            assert sorted([*held, *mirror.free]) == sorted(mirror.scratch.slots[:positions])


def check_done(engine: DraftEngine) -> None:
    """Nothing waits that nobody computes."""
    for _, mirror in engine._mirrors.items():
        assert not mirror.due
        assert not mirror.unplanned
        assert not any(branch.lacking for branch in mirror.branches)


def random_ids(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]
