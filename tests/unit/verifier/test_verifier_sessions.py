"""The verifier's fence: one turn at a time, the highest epoch wins, what is left is given back."""

from __future__ import annotations

import pytest

from common.errors import Aborted
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from verifier import sessions as subject
from verifier.sessions import Sessions

SIZE = 4
IDS = list(range(10))


class Turns:
    """Sessions over a few blocks, and who was ended."""

    def __init__(self) -> None:
        self.now = 100.0
        self.blocks = BlockManager(8, SIZE)
        self.sessions = Sessions(self.blocks, lambda note: note(), 60, lambda: self.now)
        self.ended: list[str] = []
        self._ends: dict[str, subject.End] = {}

    def enter(
        self, name: str, epoch: int, request_id: str | None = None, *, key: str = "s"
    ) -> None:
        def end(error: Aborted) -> None:
            self.ended.append(name)

        self.sessions.enter(key, epoch, request_id or name, end)
        self._ends[name] = end

    def leave(self, name: str, ids: list[int] = IDS, *, key: str = "s") -> None:
        self.sessions.leave(key, self._ends[name], ids, b"salt")

    def cached(self, salt: bytes = b"salt") -> int:
        lease = KvLease(self.blocks, salt)
        found = lease.reuse_prefix(IDS)
        lease.release()
        self.blocks.check()
        return found

    def fill(self) -> None:
        """What the engine does in a turn: computes IDS and publishes their full blocks."""
        lease = KvLease(self.blocks, b"salt")
        assert lease.reserve(len(IDS))
        lease.publish(IDS, len(IDS))
        lease.release()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_turns_follow_each_other(turns: Turns) -> None:
    for epoch, name in enumerate("abc", 1):
        turns.enter(name, epoch)
        turns.leave(name)
    assert turns.ended == []
    assert turns.sessions.stale == 0


def test_the_later_turn_ends_the_earlier_one(turns: Turns) -> None:
    turns.enter("early", 1)
    turns.enter("late", 2)
    assert turns.ended == ["early"]
    assert turns.sessions.stale == 1
    turns.leave("early")  # its end is no end of the later one
    turns.enter("latest", 3)
    assert turns.ended == ["early", "late"]


@pytest.mark.parametrize("epoch", [4, 5])
@pytest.mark.parametrize("running", [True, False])
def test_a_stale_or_replayed_epoch_is_refused(turns: Turns, epoch: int, running: bool) -> None:
    turns.enter("mine", 5)
    if not running:
        turns.leave("mine")
    with pytest.raises(Aborted):
        turns.enter("forged", epoch)
    assert turns.ended == []
    assert turns.sessions.stale == 1


def test_a_request_may_come_again_with_its_own_epoch(turns: Turns) -> None:
    turns.enter("lost", 5, "r")
    turns.enter("again", 5, "r")
    assert turns.ended == ["lost"]


def test_released_blocks_are_free_and_earlier_turns_refused(turns: Turns) -> None:
    turns.enter("a", 5)
    turns.fill()
    turns.leave("a")
    assert turns.cached() == 8
    with pytest.raises(Aborted):
        turns.sessions.release("s", 4)
    assert turns.cached() == 8
    turns.sessions.release("s", 6)
    assert turns.cached() == 0
    assert turns.blocks.available == 8
    with pytest.raises(Aborted):
        turns.enter("b", 5)
    turns.sessions.release("unknown", 1)


def test_sessions_count_while_their_cache_is_kept(turns: Turns) -> None:
    for key in ("there", "here"):
        turns.enter(key, 1, key=key)
        turns.leave(key, key=key)
    turns.enter("now", 1, key="now")
    assert turns.sessions.kept == 3
    turns.sessions.release("there", 2)
    assert turns.sessions.kept == 2
    turns.now += 61
    assert turns.sessions.kept == 1, "without another turn"


def test_blocks_that_others_hold_stay(turns: Turns) -> None:
    turns.enter("a", 1)
    turns.fill()
    turns.leave("a")
    lease = KvLease(turns.blocks, b"salt")
    assert lease.reuse_prefix(IDS) == 8
    turns.sessions.release("s", 2)
    assert turns.cached() == 8
    lease.release()
    turns.blocks.check()


@pytest.mark.parametrize("how", ["release", "expire", "go on otherwise"])
def test_what_sessions_have_in_common_goes_with_the_last_of_them(turns: Turns, how: str) -> None:
    """As a system prompt; and their turns may lie between each other."""
    turns.enter("a", 1, key="first")
    turns.fill()
    turns.leave("a", key="first")
    turns.now += 30
    turns.enter("b", 1, key="second")
    turns.leave("b", [*IDS[:SIZE], 99, 98, 97, 96], key="second")
    if how == "release":
        turns.sessions.release("first", 2)
    elif how == "expire":
        turns.now += 31
        turns.sessions.enter("other", 1, "r", lambda _: None)
    else:
        turns.enter("a again", 2, key="first")
        turns.leave("a again", [1, 2, 3, 4], key="first")
        turns.sessions.release("first", 3)
    assert turns.cached() == (8 if how == "go on otherwise" else SIZE)
    turns.sessions.release("second", 2)
    assert turns.cached() == 0


def test_claims_are_kept_of_a_few_caches_full_of_blocks(turns: Turns) -> None:
    """Those dropped are the oldest; their sessions are fenced all the same."""
    turns.enter("a", 1)
    turns.fill()
    turns.leave("a")
    for index in range(9):
        turns.enter(str(index), 1, key=str(index))
        turns.leave(str(index), list(range(100, 100 + 8 * SIZE)), key=str(index))
    claims = turns.sessions._claims
    assert claims._count == sum(map(len, claims._digests.values())) == 4 * turns.blocks.count
    assert len(claims._sessions) == 8
    assert turns.cached() == 8, "nobody ended"
    turns.sessions.release("s", 2)
    assert turns.cached() == 8, "nobody knows whose it is"
    with pytest.raises(Aborted):
        turns.enter("late", 1)


def test_a_release_ends_what_runs(turns: Turns) -> None:
    turns.enter("a", 1)
    turns.sessions.release("s", 2)
    assert turns.ended == ["a"]


def test_old_and_too_many_sessions_go_the_oldest_first(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns.enter("a", 1)
    turns.fill()
    turns.leave("a")
    turns.now += 61
    turns.sessions.enter("other", 1, "r", lambda _: None)
    assert turns.cached() == 0
    assert len(turns.sessions) == 1
    monkeypatch.setattr(subject, "_MOST_SESSIONS", 3)
    ends = [lambda _: None for _ in range(9)]
    for index, end in enumerate(ends):
        turns.sessions.enter(str(index), 1, "r", end)
        turns.sessions.leave(str(index), end, [], b"")
    assert len(turns.sessions) == 3 + 1, "the oldest of all still runs, and is in nobody's way"
    with pytest.raises(Aborted):
        turns.sessions.enter("other", 1, "another", lambda _: None)


def test_what_runs_does_not_keep_expired_ones_alive(turns: Turns) -> None:
    turns.sessions.enter("runs", 1, "r", lambda _: None)
    turns.enter("a", 1)
    turns.fill()
    turns.leave("a")
    turns.now += 61
    turns.sessions.release("unknown", 1)
    assert turns.cached() == 0
    assert len(turns.sessions) == 2


def test_released_sessions_push_nothing_out(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_MOST_SESSIONS", 3)
    turns.enter("a", 5)
    turns.fill()
    turns.leave("a")
    for index in range(100):
        turns.sessions.release(f"unknown {index}", 1)
    assert len(turns.sessions) == 3 + 1
    assert turns.cached() == 8
    with pytest.raises(Aborted):
        turns.enter("stale", 4)


def test_a_turn_that_was_released_here_may_come_back(turns: Turns) -> None:
    """It went elsewhere, and that verifier was lost."""
    turns.enter("before", 1)
    turns.leave("before")
    turns.sessions.release("s", 2)
    turns.enter("back", 2, "r")
    turns.sessions.release("s", 2)  # was long on its way
    assert turns.ended == []
    with pytest.raises(Aborted):
        turns.enter("replayed", 2, "another")
    turns.sessions.release("s", 3)
    assert turns.ended == ["back"]
