"""How far a head drafts: behind its likeliest guesses, as deep as it pays and there is room."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model.drafting_head import MOST_DEPTH, MOST_DRAFTED
from common.model.keyed_head import Behind
from tests.unit.verifier.methods.fake_eagle import FakeDraft, FakeHead, said
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.cost import StepCost
from verifier.methods import head_drafts
from verifier.methods.head_drafts import Guess, HeadDrafts, Text

FREE = StepCost()


@dataclass
class Clock:
    """Seconds by hand."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(head_drafts, "time", clock)
        yield clock


class Slow(FakeHead):
    """Each depth takes a while."""

    def __init__(
        self, logits: Tensor, clock: Clock, seconds: float, *, alone: bool = False
    ) -> None:
        super().__init__(logits)
        self._clock, self._seconds, self._alone = clock, seconds, alone

    def groups(self, texts: Seq[Behind]) -> list[list[int]]:
        every = super().groups(texts)
        return [[text] for group in every for text in group] if self._alone else every

    def at(self, depth: int, rows: int) -> Tensor:
        self._clock.now += self._seconds
        return super().at(depth, rows)


class Told(FakeHead):
    """What it says hangs on the text, which nothing else says anything about."""

    def __init__(self, of: Seq[Tensor], groups: list[list[int]] | None = None) -> None:
        super().__init__(of[0])
        self._of, self._groups = of, groups

    def groups(self, texts: Seq[Behind]) -> list[list[int]]:
        return self._groups or super().groups(texts)

    def draft(self, texts: Seq[Behind]) -> FakeDraft:
        draft = super().draft(texts)
        draft.logits = torch.cat([self._of[int(text.states)] for text in texts])
        return draft


@pytest.fixture(params=[False, True], ids=["by depths", "in one call"])
def rolls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether heads go on by themselves, which changes nothing but the time that it takes."""
    monkeypatch.setattr(FakeHead, "rolls", request.param)
    return bool(request.param)


def _draft(
    drafts: HeadDrafts, texts: int = 1, *, most: int = 64, factors: Seq[float] = (1.0,) * MOST_DEPTH
) -> list[list[Guess]]:
    slots = np.arange(2, 10)
    behind = [Behind(torch.full((1, 1), text), [5], 3, slots) for text in range(texts)]
    return drafts.draft([Text(sequence([5] * 5, 64), factors, most)] * texts, behind)


def _depths(guesses: Seq[Guess]) -> list[int]:
    depths: list[int] = []
    for guess in guesses:
        depths.append(0 if guess.parent < 0 else depths[guess.parent] + 1)
    return depths


@pytest.mark.usefixtures("rolls")
def test_a_guess_has_its_chance_and_that_of_its_path() -> None:
    """Parents come first; what is said of a depth is trusted as far as it was right."""
    factors = [0.5, 2.0, *[0.1] * (MOST_DEPTH - 2)]
    head = FakeHead(said([0.8, 0.1], [0.4, 0.3], [0.6]))
    (guesses,) = _draft(HeadDrafts(head, FREE), most=3, factors=factors)
    for number, guess in enumerate(guesses):
        assert guess.parent < number
    depths = _depths(guesses)
    assert set(depths) == {0, 1, 2}
    joint = {-1: 1.0}
    for number, (guess, depth) in enumerate(zip(guesses, depths, strict=True)):
        joint[number] = joint[guess.parent] * min(guess.said * factors[depth], 1.0)
        assert guess.joint == pytest.approx(joint[number])
    first = [guess for guess, depth in zip(guesses, depths, strict=True) if not depth]
    assert [guess.token for guess in first[:2]] == [0, 1]
    assert [guess.said for guess in first[:2]] == pytest.approx([0.8, 0.1], rel=1e-3)


@pytest.mark.parametrize("followed", [1, 2])
def test_the_likeliest_guesses_of_each_text_are_gone_on_from(followed: int) -> None:
    """Those that are likely enough, in the order of the rows they come of."""
    head = Told([said([0.5, 0.3]), said([0.05] * 4), said([0.2, 0.7])])
    head.followed = followed
    _draft(HeadDrafts(head, FREE), 3, most=2)
    wanted = [(0, 0), (0, 1), (2, 1), (2, 0)] if followed > 1 else [(0, 0), (2, 1)]
    assert len(head.asked) == 1
    parents, tokens = head.asked[0]
    assert sorted(zip(parents, tokens, strict=True)) == sorted(wanted)
    assert parents == sorted(parents)


@pytest.mark.usefixtures("rolls")
@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_guess_is_deeper_than_is_asked_for(most: int) -> None:
    head = FakeHead(said([1.0]))
    (guesses,) = _draft(HeadDrafts(head, FREE), most=most)
    assert max(_depths(guesses)) == max(most, 1) - 1


@pytest.mark.usefixtures("rolls")
def test_a_sure_head_goes_to_the_end_and_an_unsure_one_does_not() -> None:
    (sure,) = _draft(HeadDrafts(FakeHead(said([1.0])), FREE))
    assert max(_depths(sure)) == MOST_DEPTH - 1
    (unsure,) = _draft(HeadDrafts(FakeHead(said([0.5])), FREE))
    assert 0 < max(_depths(unsure)) < 6
    distrusted = [0.4] * MOST_DEPTH
    (doubted,) = _draft(HeadDrafts(FakeHead(said([1.0])), FREE), factors=distrusted)
    assert max(_depths(doubted)) < 6


@pytest.mark.usefixtures("rolls")
@pytest.mark.parametrize(("seconds", "deep"), [(1e-6, True), (1e-2, False)])
def test_depths_that_take_longer_than_they_bring_are_left_off(
    seconds: float, deep: bool, clock: Clock
) -> None:
    """A step takes a thousandth of a second, however many rows it has."""
    head = Slow(said([0.97]), clock, seconds)
    drafts = HeadDrafts(head, FREE)
    for _ in range(30):
        (guesses,) = _draft(drafts)
    assert (max(_depths(guesses)) > 5) == deep
    if not deep:
        assert max(_depths(guesses)) <= 1


def test_texts_in_groups_have_the_guesses_that_they_have_together() -> None:
    """One group is drafted to its end before the next is begun."""
    of = [said([0.5, 0.3]), said([0.05] * 4), said([0.2, 0.7]), said([0.9])]
    together = _draft(HeadDrafts(Told(of), FREE), 4, most=3)
    for groups in ([[2], [0, 1, 3]], [[3, 1], [0, 2]], [[1], [3], [0], [2]]):
        head = Told(of, groups)
        assert _draft(HeadDrafts(head, FREE), 4, most=3) == together
        begun = [[int(text.states) for text in draft] for draft in head.drafts]
        assert begun == groups


@pytest.mark.parametrize("alone", [False, True])
def test_a_depth_of_a_group_pays_for_all_texts_of_the_step(alone: bool, clock: Clock) -> None:
    """All wait for it, and only its own texts have more of it."""
    drafts = HeadDrafts(Slow(said([0.97]), clock, 4e-4, alone=alone), FREE)
    for _ in range(30):
        guesses = _draft(drafts, 4)
    deepest = [max(_depths(each)) for each in guesses]
    assert max(deepest) <= 1 if alone else min(deepest) > 1


@pytest.mark.usefixtures("rolls")
def test_where_rows_cost_a_step_each_little_is_drafted() -> None:
    dear = StepCost(((1, 0.001), (64, 0.064)))
    (guesses,) = _draft(HeadDrafts(FakeHead(said([0.6])), dear))
    (sure,) = _draft(HeadDrafts(FakeHead(said([0.6])), FREE))
    assert max(_depths(guesses)) < max(_depths(sure))


@pytest.mark.parametrize("texts", [1, 40, 700])
def test_there_are_never_more_rows_than_the_cache_has_room_for(texts: int) -> None:
    head = FakeHead(said([0.5, 0.5], [1.0]))
    guesses = _draft(HeadDrafts(head, FREE), texts)
    assert len(guesses) == texts
    rows = sum(len(parents) for parents, _ in head.asked)
    assert rows <= MOST_DRAFTED
    assert texts > MOST_DRAFTED / 2 or rows > 0


@pytest.mark.usefixtures("rolls")
def test_nothing_is_likely_enough_to_be_gone_on_from() -> None:
    head = FakeHead(said([0.02]))
    (guesses,) = _draft(HeadDrafts(head, FREE))
    assert head.asked == []
    assert set(_depths(guesses)) == {0}
