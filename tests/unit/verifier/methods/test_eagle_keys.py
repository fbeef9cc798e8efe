"""Keys that a head sees: those of its own text, of whoever wrote them, and no others."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.model.blocks import BlockManager
from common.model.keyed_head import Behind
from common.model.kv_cache import ZERO_SLOT, KvLease
from common.model.tree import TokenTree
from tests.unit.verifier.methods.fake_eagle import FakeDraft, FakeHead, Lines, said
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.cost import StepCost
from verifier.methods import eagle
from verifier.methods.eagle import EagleProposer
from verifier.methods.head_keys import TextMarks
from verifier.sequence import Sequence

pytestmark = pytest.mark.usefixtures("still")


def _lines(head: FakeHead, most: int = 16) -> Lines:
    return Lines(EagleProposer(head, StepCost(), most))


def test_only_prompts_of_texts_that_others_draft_for_are_read() -> None:
    """Another text may begin with the same."""
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one, other = lines.other([5, 6, 8]), lines.other([5, 6, 8])
    lines.chunk(one, 2)
    lines.end(one, heard=False)
    assert [(text.position, text.end) for text in head.written] == [(0, 2)]
    other.lease, other.computed = one.lease, 2
    lines.proposer.open(other)
    lines.end(other)
    lines.tree(other)
    ((text,),) = head.drafts
    assert (text.position, text.end) == (2, 3)
    assert text.slots[:3].tolist() == one.lease.slots[:3].tolist(), "no holes"


def test_a_prompt_is_marked_once_however_many_chunks_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a text that others draft for, too; nothing is left of one that is gone."""
    made: list[TextMarks] = []

    def counted(most: int) -> TextMarks:
        made.append(TextMarks(most))
        return made[-1]

    monkeypatch.setattr(eagle, "TextMarks", counted)
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one = lines.other([5] * 40)
    for _ in range(3):
        lines.chunk(one, 13)
    assert [(text.position, text.end) for text in head.written] == [(0, 13), (13, 26), (26, 39)]
    assert len(made) == len(lines.proposer._marks) == 1
    lines.numbers.clear()
    del one
    assert len(lines.proposer._marks) == 0


def test_behind_a_long_prompt_there_are_guesses_at_once() -> None:
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one = lines.other([5] * 150)
    lines.proposer.open(one)
    lines.end(one)
    assert len(lines.tree(one)) > 1
    spans = [(text.position, text.end) for text in (*head.written, *head.drafts[0])]
    assert spans[0][0] == 0
    assert spans[-1][1] == 150
    assert all(second[0] <= first[1] for first, second in pairwise(spans))


class Checked(FakeHead):
    """Knows what each slot holds, and whether what it is shown is right."""

    def __init__(self, slots: int) -> None:
        super().__init__(said([0.5, 0.3], [0.4, 0.4]), slots=slots)
        self.texts: list[Sequence] = []
        self.held: dict[int, tuple[int, ...]] = {}
        """By slot, the text up to the token that its key was made with."""
        self.holes = 0

    def write(self, texts: Seq[Behind]) -> None:
        for text in texts:
            self._take(text)

    def draft(self, texts: Seq[Behind]) -> FakeDraft:
        for text in texts:
            one = self.texts[int(text.states[0, 0])]
            assert text.end == len(one.ids) - 1
            for at, slot in enumerate(text.slots[: text.position].tolist()):
                own = int(one.lease.slots[at])
                there = self.held.get(own) == tuple(one.ids[: at + 2])
                assert slot == (own if there else ZERO_SLOT), "what is there is seen, and only that"
                self.holes += not there
        self.write(texts)
        return super().draft(texts)

    def _take(self, text: Behind) -> None:
        one = self.texts[int(text.states[0, 0])]
        span = range(text.position, text.end)
        assert text.states.tolist() == [[self.texts.index(one), at] for at in span]
        assert [*text.tokens] == one.ids[text.position + 1 : text.end + 1]
        for at in span:
            assert text.slots[at] == one.lease.slots[at]
            self.held[int(text.slots[at])] = tuple(one.ids[: at + 2])


class Machine:
    """Texts that come, go and lose their cache in any order; of a few tokens, so that they begin
    alike."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.blocks = draw, BlockManager(12, 4)
        self.head = Checked(13 * 4)
        self.lines = _lines(self.head, most=6)
        self.live: list[Sequence] = []
        self.drafted: set[Sequence] = set()

    def come(self) -> None:
        draw = self.draw
        one = sequence([draw.randrange(2) for _ in range(draw.randint(1, 12))], 12)
        one.lease = KvLease(self.blocks)
        self.lines.numbers[one] = len(self.head.texts)
        self.head.texts.append(one)
        self.live.append(one)
        if draw.random() < 0.7:
            self.drafted.add(one)
            self.lines.proposer.open(one)

    def step(self, one: Sequence) -> None:
        draw, lines = self.draw, self.lines
        if not one.lease.capacity:
            one.computed = one.lease.reuse_prefix(one.ids)
        if not one.lease.reserve(len(one.ids) + 8):
            self.lose(one)
            return
        rows = draw.randint(1, one.pending)
        if rows < one.pending:
            lines.chunk(one, rows)
        elif one in self.drafted and one.pending == 1 and draw.random() < 0.2:
            lines.rest(one, [draw.randrange(2) for _ in range(draw.randint(1, one.room))])
        else:
            tree = TokenTree(one.ids[-1])
            if one in self.drafted and one.pending == 1 and draw.random() < 0.8:
                lines.proposer.propose(one, tree, draw.randint(0, 6))
            accepted = tree.path(draw.randrange(len(tree)))[: one.room]
            bonus = draw.randrange(2) if len(accepted) < one.room else None
            wanted, heard = draw.random() < 0.8, one in self.drafted
            lines.end(one, tree, accepted, bonus, wanted=wanted, heard=heard)
        one.add_computed(0)
        if one.finished:
            self.leave(one)

    def lose(self, one: Sequence) -> None:
        one.lease.release()
        one.computed = 0

    def leave(self, one: Sequence) -> None:
        if one in self.drafted:
            self.lines.proposer.close(one)
        self.live.remove(one)
        one.lease.release()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_head_sees_the_keys_of_its_own_text_and_no_others(seed: int) -> None:
    draw = random.Random(seed)
    machine = Machine(draw)
    for _ in range(120):
        what = draw.choices(["come", "step", "lose", "leave"], [2, 12, 1, 0.5])[0]
        if what == "come" and len(machine.live) < 4:
            machine.come()
        elif what != "come" and machine.live:
            getattr(machine, what)(draw.choice(machine.live))
    machine.blocks.check()
    assert machine.lines.proposer._sessions.keys() == machine.drafted & {*machine.live}


def test_texts_that_keep_their_cache_have_no_holes() -> None:
    """One after the other, which find what others began with."""
    machine = Machine(random.Random(4))
    drafted = machine.drafted
    for number in range(12):
        one = sequence([0, 1, 1, 0, 1, 0, 0, 1, 1, number % 3], 12)
        one.lease = KvLease(machine.blocks)
        machine.lines.numbers[one] = number
        machine.head.texts.append(one)
        one.computed = one.lease.reuse_prefix(one.ids)
        assert one.lease.reserve(24)
        assert one.computed == (8 if number else 0)
        if number % 2:
            drafted.add(one)
            machine.lines.proposer.open(one)
        machine.lines.end(one, heard=one in drafted)
        while one in drafted and not one.finished:
            tree = machine.lines.tree(one)
            accepted = tree.path(len(tree) - 1)[: one.room - 1]
            machine.lines.end(one, tree, accepted, machine.draw.randrange(2))
        machine.lines.proposer.close(one)
        one.add_computed(0)
        one.lease.release()
    assert machine.head.drafts
    assert machine.head.holes == 0


def test_rows_shown_in_the_middle_of_a_prompt_are_kept_where_another_text_drafts() -> None:
    """Of a text that lost its cache, and had been about to be drafted for."""
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one, other = lines.text([5, 6, 8, 9], 9), lines.text([5], 9)
    lines.end(one)
    lines.end(other)
    one.lease.release()
    one.computed = 0
    one.lease.reserve(13)
    lines.chunk(one, 2)
    lines.tree(other)
    lines.chunk(one, 2)
    lines.end(one)
    lines.tree(one)
    (text,) = head.drafts[-1]
    assert (text.position, text.end) == (0, 5)


@pytest.mark.parametrize("rows", [3, 5])
def test_states_are_copied_where_they_are_a_part_of_a_pass(rows: int) -> None:
    """Which would be kept whole; those that were copied for it are not copied again."""
    head = FakeHead(said([0.9]))
    lines = _lines(head)
    one = lines.other([5, 6, 8, 9])
    lines.proposer.open(one)
    states = torch.randn(rows, 2)[:3]
    for _ in range(2):  # the second time they do not follow those before: these are written
        lines.proposer.read(one, 0, states)
    (text,) = head.written
    assert torch.equal(text.states, states)
    assert text.states.untyped_storage().nbytes() == states.nbytes
    assert (text.states.data_ptr() == states.data_ptr()) == (rows == len(states))
