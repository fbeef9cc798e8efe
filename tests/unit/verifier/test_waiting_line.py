"""The waiting line: nobody is lost, first come within a tenant, and no tenant gets far ahead."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from verifier import waiting_line
from verifier.sequence import Request, Sequence
from verifier.waiting_line import WaitingLine

TENANTS = [b"a", b"b", b"c", b""]
LARGEST = 50


class Line:
    """A waiting line, and who comes."""

    def __init__(self) -> None:
        self.waiting = WaitingLine()
        self._blocks = BlockManager(1, 2)
        self._tickets = 0

    def __len__(self) -> int:
        return sum(map(len, self.waiting._lines.values()))

    def come(self, salt: bytes, rows: int = 1) -> Sequence:
        self._tickets += 1
        request = Request(request_id="r", prompt_ids=(5,) * rows, max_tokens=1, cache_salt=salt)
        lease = KvLease(self._blocks, salt)
        sequence = Sequence(request, lambda event: None, lease, self._tickets)
        self.waiting.append(sequence)
        return sequence

    def admit(self) -> Sequence:
        first = self.waiting.first()
        assert first is not None
        self.waiting.admit(first, first.prompt_len)
        first.begun = True
        return first

    def tenants(self, count: int) -> str:
        """Whose sequences are let in next."""
        return "".join(self.admit().request.cache_salt.decode() for _ in range(count))


@pytest.fixture
def line() -> Line:
    return Line()


def test_one_tenant_is_served_as_it_comes(line: Line) -> None:
    came = [line.come(b"a", rows) for rows in (9, 1, 30, 2)]
    assert [line.admit() for _ in came] == came
    assert line.waiting.first() is None


def test_a_flood_is_passed_by_who_comes_later(line: Line) -> None:
    for _ in range(100):
        line.come(b"a")
    assert line.tenants(10) == "a" * 10
    for salt in (b"b", b"b", b"c"):
        line.come(salt)
    assert sorted(line.tenants(3)) == ["a", "b", "c"]
    assert line.tenants(3) in ("aba", "baa")


def test_large_prompts_count_for_more(line: Line) -> None:
    for _ in range(50):
        line.come(b"a", 40)
        line.come(b"b", 10)
    assert Counter(line.tenants(50)) == {"a": 10, "b": 40}


def test_what_runs_counts(line: Line) -> None:
    for _ in range(20):
        line.come(b"a")
        line.come(b"b")
    line.waiting.charge(line.admit(), 5)
    assert line.tenants(6) == "b" * 6


def test_being_away_saves_nothing_up(line: Line) -> None:
    line.come(b"b")
    line.admit()
    for _ in range(40):
        line.come(b"a")
    line.tenants(30)
    for _ in range(10):
        line.come(b"b")
    assert Counter(line.tenants(10)) == {"a": 5, "b": 5}


def test_who_was_put_back_is_the_first_of_its_tenant_and_pays_once(line: Line) -> None:
    early, late = line.come(b"a", 7), line.come(b"a", 7)
    other = line.come(b"b", 7)
    line.admit()
    line.admit()
    line.admit()
    rows = line.waiting.rows(early)
    line.come(b"a")
    line.waiting.put_back(late)
    line.waiting.put_back(early)
    newcomer = line.come(b"c")
    line.waiting.charge(early, 1)
    assert [line.admit(), line.admit(), line.admit()] == [newcomer, early, late]
    assert line.waiting.rows(early) == rows + 1
    line.waiting.remove(other)  # is not there: nothing happens
    assert len(line) == 1


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_nobody_is_lost_and_tenants_keep_their_order(seed: int) -> None:
    draw, line = random.Random(seed), Line()
    expected: dict[bytes, list[Sequence]] = defaultdict(list)
    running: list[Sequence] = []
    for _ in range(120):
        match draw.choice(["come", "come", "admit", "admit", "put back", "leave", "run"]):
            case "come":
                salt = draw.choice(TENANTS)
                expected[salt].append(line.come(salt, draw.randint(1, LARGEST)))
            case "admit" if len(line):
                admitted = line.admit()
                assert admitted is expected[admitted.tenant].pop(0)
                running.append(admitted)
            case "put back" if running:
                back = running.pop(draw.randrange(len(running)))
                expected[back.tenant].insert(0, back)
                line.waiting.put_back(back)
            case "leave" if len(line):
                gone = draw.choice([each for row in expected.values() for each in row])
                line.waiting.remove(gone)
                expected[gone.tenant].remove(gone)
            case "run" if running:
                line.waiting.charge(draw.choice(running), draw.randint(1, LARGEST))
        assert len(line) == sum(map(len, expected.values()))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), tenants=st.integers(2, 5))
def test_of_tenants_that_always_wait_none_gets_far_ahead(seed: int, tenants: int) -> None:
    """Whenever each of them came, and whatever else comes and goes beside them."""
    draw, line = random.Random(seed), Line()
    salts = [bytes([65 + index]) for index in range(tenants)]
    since: dict[bytes, int] = {}  # rows of a tenant when the last of them began to wait
    given_rows: Counter[bytes] = Counter()
    for step in range(200):
        for salt in salts[: 1 + step // 10]:
            if salt not in since:
                since[salt] = 0
                given_rows.clear()
            while sum(s.request.cache_salt == salt for s in _waiting(line)) < 2:
                line.come(salt, draw.randint(1, LARGEST))
        if draw.random() < 0.3:
            line.come(b"passing", draw.randint(1, LARGEST))
        admitted = line.admit()
        given_rows[admitted.request.cache_salt] += admitted.prompt_len
        rows = [given_rows[salt] for salt in since]
        assert max(rows) - min(rows) <= 2 * LARGEST


def _waiting(line: Line) -> list[Sequence]:
    return [each for row in line.waiting._lines.values() for each in row]


@settings(max_examples=40)
@given(floods=st.integers(1, 6), waiting=st.integers(1, 40))
def test_a_newcomer_waits_for_one_of_each_other_tenant_at_most(floods: int, waiting: int) -> None:
    line = Line()
    for tenant in range(floods):
        for _ in range(waiting):
            line.come(bytes([65 + tenant]))
    line.tenants(min(waiting, 7))
    newcomer = line.come(b"new")
    ahead = 0
    while line.admit() is not newcomer:
        ahead += 1
    assert ahead <= floods


def test_tenants_that_left_are_forgotten(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_line, "_MOST_TENANTS", 10)
    line.come(b"stays", 3)
    line.come(b"stays", 3)
    for index in range(100):
        line.come(b"%d" % index)
        line.admit()
    assert len(line.waiting._rows) <= 12
    assert len(line) == 2 or b"stays" not in line.waiting._lines
