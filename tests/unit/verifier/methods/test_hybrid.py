"""Several methods share one tree, and each is kept only while it pays."""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest
import torch

from common.model.output import Computed
from common.model.tree import TokenTree
from tests.clock import Clock
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.gates.gated import GatedProposer
from verifier.methods import Methods, Parts
from verifier.methods.arms import Arms, Standing
from verifier.methods.beliefs import Leaning
from verifier.methods.hybrid import HybridProposer
from verifier.proposer import Outcome
from verifier.sequence import Sequence
from verifier.totals import Totals

COST = StepCost(((1, 0.003), (8, 0.005), (64, 0.021)))


@dataclass
class Member:
    """Proposes one path, and is ready when it is told to be."""

    path: list[int]
    is_ready: bool = True
    budgets: list[int] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)
    closed: int = 0

    def open(self, sequence: Sequence) -> None: ...

    def ready(self, sequence: Sequence, now: float) -> bool:
        return self.is_ready

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        self.budgets.append(budget)
        tree.add_path(self.path[:budget] if self.is_ready else [])

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        self.wanted.append(outcome.wanted)

    def close(self, sequence: Sequence) -> None:
        self.closed += 1


@dataclass
class Drafter(Member):
    """One that drafts elsewhere, until it is lost."""

    lost: bool = False

    def asked(self, sequence: Sequence) -> bool:
        return self.wanted[-1] and not self.lost

    def flush(self) -> None: ...


@dataclass
class Seer(Member):
    """One that knows what it expects."""

    expects: float = 0.0
    asked: int = 0

    def foresee(self, sequence: Sequence) -> float:
        self.asked += 1
        return self.expects


@dataclass
class Case:
    """A hybrid of two members, a and b, and one text."""

    a: Member
    b: Member
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.hybrid = HybridProposer({"a": self.a, "b": self.b}, COST, self.clock)
        self.begin()

    def again(self) -> None:
        """Ends the text, and begins another."""
        self.hybrid.close(self.one)
        self.begin()

    def begin(self) -> None:
        """Starts a text: the prefill brings its first token, and has no draft."""
        self.one = sequence([5], 1_000_000, **self.options)
        self.hybrid.open(self.one)
        self._end(TokenTree(5), [])

    def round(self, right: list[int], wait_s: float = 0.0) -> TokenTree:
        """One round in which the target goes along `right`.

        Args:
            right: Tokens after the root.
            wait_s: How long b takes where it is waited for.
        """
        if not self.hybrid.ready(self.one, self.clock.now):
            until = self.hybrid.deadline(self.clock.now)
            assert until is not None
            self.b.is_ready = self.clock.now + wait_s <= until
            self.clock.now = min(self.clock.now + wait_s, until)
            assert self.hybrid.ready(self.one, self.clock.now)
        tree = TokenTree(self.one.ids[-1])
        self.hybrid.propose(self.one, tree, 16)
        accepted, node = [], 0
        for token in right:
            child = tree.child(node, token)
            if child is None:
                break
            accepted.append(child)
            node = child
        self.clock.now += COST.unloaded_s(len(tree) - 1)
        self._end(tree, accepted)
        return tree

    def _end(self, tree: TokenTree, accepted: list[int], *, wanted: bool = True) -> None:
        ids = [*(tree.ids[node] for node in accepted), 9]
        self.one.commit(ids)
        output = Computed(logits=torch.zeros(1, 0), states=torch.zeros(1, 1))
        outcome = Outcome(
            tree=tree, choices=(), accepted=accepted, ids=ids, output=output, wanted=wanted
        )
        self.hybrid.observe(self.one, outcome)


def test_a_node_that_both_want_is_checked_once() -> None:
    case = Case(Member([1, 2, 3]), Member([1, 2, 4]))
    tree = case.round(right=[1, 2, 3])
    assert len(tree) == 1 + 4
    assert sorted(tree.owners[1:4]) in (["a"] * 3, ["b"] * 3)
    backers = tree.backers({"a": 1, "b": 2})
    assert backers[:3] == [0, 3, 3]
    assert {*backers[3:5]} == {1, 2}


def test_who_never_helps_rests_and_is_tried_again() -> None:
    good, bad = Member([1, 2]), Member([7, 8, 6, 5])
    case = Case(good, bad)
    for _ in range(2000):
        case.round(right=[1, 2])
    late = bad.budgets[-1000:]
    assert 1 <= sum(budget > 0 for budget in late) <= 20
    assert bad.wanted.count(True) < 100, "it is told that it may rest"
    assert min(good.budgets) > 0
    assert all(good.wanted)


def test_nobody_waits_for_one_that_rests() -> None:
    good, bad = Member([1, 2]), Member([7, 8, 6, 5])
    case = Case(good, bad)
    for _ in range(200):
        case.round(right=[1, 2])
    bad.is_ready = False
    assert case.hybrid.ready(case.one, case.clock.now)
    good.is_ready = False
    assert not case.hybrid.ready(case.one, case.clock.now)


@pytest.mark.parametrize(("wait_s", "stays"), [(0.0, True), (0.05, False)])
def test_one_that_keeps_the_others_waiting_must_bring_more(wait_s: float, stays: bool) -> None:
    """Two tokens a round are worth their rows, but not ten passes of waiting."""
    case = Case(Member([1, 2, 3]), Member([4, 5]))
    for index in range(400):
        case.b.is_ready = False
        case.round(right=[4, 5] if index % 2 else [1, 2, 3], wait_s=wait_s)
    took_part = sum(budget > 0 for budget in case.b.budgets[-100:])
    assert (took_part > 90) == stays


KINDS = {
    "fresh": (0.1, [1], [2, 3, 4]),  # the look-up is wrong, drafts are right
    "repeating": (4.0, [1, 5, 6, 7, 8], [1, 5, 9]),  # it knows more than drafts do
    "mixed": (2.0, [1, 5], [1, 5, 6, 7]),
    "noise": (0.05, [], [7]),
}
"""What the look-up expects, where it goes, and where the text goes by way of the drafts."""
DRAFT_S = 0.004


def _speed(case: Case, kind: str, texts: int, rounds: int = 15) -> float:
    """Tokens a second of simulated time over short texts of one kind."""
    began, tokens = case.clock.now, 0
    look_up, draft = case.a, case.b
    assert isinstance(look_up, Seer)
    look_up.expects, look_up.path, draft.path = KINDS[kind]
    right = {"fresh": draft.path, "repeating": look_up.path, "mixed": draft.path, "noise": [3]}[
        kind
    ]
    for _ in range(texts):
        case.again()
        for _ in range(rounds):
            before = len(case.one.ids)
            draft.is_ready = False
            case.round(right, wait_s=DRAFT_S)
            tokens += len(case.one.ids) - before
    return tokens / (case.clock.now - began)


def _best_part(kind: str) -> float:
    """What the faster of both makes by itself, and plain decoding."""
    _, look_up, draft = KINDS[kind]
    right = look_up if kind == "repeating" else [3] if kind == "noise" else draft

    def alone(path: list[int], wait_s: float) -> float:
        agreed = 0
        while agreed < min(len(path), len(right)) and path[agreed] == right[agreed]:
            agreed += 1
        return (1 + agreed) / (wait_s + COST.unloaded_s(len(path)))

    return max(alone(look_up, 0.0), alone(draft, DRAFT_S), alone([], 0.0))


def test_it_is_hardly_slower_than_its_best_part_on_any_kind_of_text() -> None:
    """Short texts of all kinds in turn, in simulated time: 3 % is what the trials may cost."""
    case = Case(Seer([]), Drafter([]))
    for _ in range(10):
        for kind in KINDS:
            _speed(case, kind, 2)
    speeds = dict.fromkeys(KINDS, 0.0)
    for _ in range(20):
        for kind in KINDS:
            speeds[kind] += _speed(case, kind, 1) / 20
    slow = {kind: speed for kind, speed in speeds.items() if speed < 0.97 * _best_part(kind)}
    assert not slow


def test_a_text_unlike_the_others_is_found_out() -> None:
    """Drafts are right in all texts but one, where the hybrid soon stops to wait for them."""
    case = Case(Seer([]), Drafter([]))
    _speed(case, "fresh", 40)
    case.again()
    case.b.path = [7, 8, 9]
    for _ in range(60):
        case.b.is_ready = False
        case.round([2, 3, 4], wait_s=DRAFT_S)
    assert sum(budget > 0 for budget in case.b.budgets[-30:]) <= 8
    case.again()
    case.b.path = [2, 3, 4]
    for _ in range(10):
        case.b.is_ready = False
        case.round([2, 3, 4], wait_s=DRAFT_S)
    assert sum(budget > 0 for budget in case.b.budgets[-8:]) >= 7


def test_look_ups_are_seldom_asked_while_drafts_are_best_and_soon_where_they_are_not() -> None:
    case = Case(Seer([]), Drafter([2, 3, 4]))
    look_up = case.a
    assert isinstance(look_up, Seer)
    for _ in range(300):
        case.b.is_ready = False
        case.round([2, 3, 4], wait_s=0.003)
    assert look_up.asked < 50
    look_up.path, look_up.expects = [7, 8, 9, 7, 8, 9], 6.0
    for _ in range(30):
        case.b.is_ready = False
        case.round(look_up.path, wait_s=0.003)
    assert sum(budget > 0 for budget in look_up.budgets[-20:]) >= 19


def test_a_drafter_stays_where_a_look_up_is_better_now_and_then() -> None:
    """For one round in three it knows two tokens; but who was left out comes back slowly."""
    case = Case(Seer([]), Drafter([2, 3, 4]))
    look_up = case.a
    assert isinstance(look_up, Seer)
    for index in range(900):
        look_up.path = [2, 3] if index % 3 == 1 else []
        look_up.expects = 2.0 if index % 3 == 1 else 0.0
        ahead = case.b.wanted[-2:-1] == [True]
        case.b.is_ready = False
        case.round([2, 3, 4], wait_s=0.003 if ahead else 0.011)
    assert sum(budget > 0 for budget in case.b.budgets[-300:]) > 270


def test_a_member_that_works_here_is_left_out_round_by_round() -> None:
    case = Case(Seer([]), Member([2, 3, 4, 5, 6, 7]))
    look_up = case.a
    assert isinstance(look_up, Seer)
    for index in range(900):
        look_up.path = [2, 3, 4, 5] if index % 3 == 1 else []
        look_up.expects = 4.0 if index % 3 == 1 else 0.0
        case.b.is_ready = False
        case.round([2, 3, 4, 5], wait_s=0.004)
    assert 190 < sum(budget > 0 for budget in case.b.budgets[-300:]) < 220


@dataclass
class Head(Member):
    """One that takes as long to find nothing worth checking as to find something."""

    clock: Clock = field(default_factory=Clock)
    takes_s: float = 0.0
    due: bool = False

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        self.clock.now += self.takes_s * self.due  # for all texts together
        self.due = False
        super().propose(sequence, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        super().observe(sequence, outcome)
        self.due |= outcome.wanted


@pytest.mark.parametrize(("takes_s", "stays"), [(0.0, True), (0.002, False)])
def test_what_heads_take_counts_where_they_find_nothing_too(takes_s: float, stays: bool) -> None:
    """In one round of five a head knows the next two tokens; else it is asked in vain."""
    head = Head([], takes_s=takes_s)
    case = Case(Seer([]), head)
    head.clock = case.clock
    for index in range(900):
        head.path = [2, 3] if index % 5 == 0 else []
        case.round([2, 3])
    assert (sum(budget > 0 for budget in head.budgets[-300:]) > 150) == stays


@pytest.mark.parametrize("others", [0, 3])
def test_heads_that_were_slow_for_a_while_come_back(others: int) -> None:
    """With texts that take turns, too."""
    head = Head([2, 3, 4], takes_s=0.05)
    case = Case(Seer([]), head)
    head.clock, texts = case.clock, [case.one]
    for _ in range(others):
        case.begin()
        texts.append(case.one)

    def step() -> None:
        trees = [TokenTree(text.ids[-1]) for text in texts]
        for text, tree in zip(texts, trees, strict=True):
            assert case.hybrid.ready(text, case.clock.now)
            case.hybrid.propose(text, tree, 16)
        case.clock.now += COST.unloaded_s(sum(map(len, trees)) - 1)
        for case.one, tree in zip(texts, trees, strict=True):
            case._end(tree, [*range(1, len(tree))])

    for _ in range(60):
        step()
    assert not any(head.budgets[-20:])
    head.takes_s = 0.0
    for _ in range(1000):
        step()
    assert all(head.budgets[-20:])


def test_who_has_no_room_in_the_tree_is_not_blamed_for_it() -> None:
    """Of a request for one draft token, which the look-up has; where there is more, it is waited
    for."""
    case = Case(Seer([1], expects=1.9), Member([1, 2, 3]), {"draft_tokens": 1})
    for _ in range(200):
        case.round([1, 2, 3])
    case.options = {}
    case.again()
    case.b.is_ready = False
    assert len(case.round([1, 2, 3], wait_s=COST.unloaded_s(0) / 2)) == 1 + 3


def test_a_drafter_rests_while_a_look_up_is_better_throughout() -> None:
    case = Case(Seer([1, 2, 3, 4, 5], expects=5.0), Drafter([1, 2]))
    for _ in range(300):
        case.b.is_ready = False
        case.round([1, 2, 3, 4, 5], wait_s=0.003)
    assert sum(case.b.wanted[-100:]) < 10


def test_a_drafter_that_is_lost_takes_no_round_of_a_look_up() -> None:
    """However much drafts were worth, in this text and in those before it."""
    look_up, drafter = Seer([1], expects=0.2), Drafter([1, 2, 3, 4])
    case = Case(look_up, drafter)
    for _ in range(100):
        case.round(drafter.path)
    assert look_up.budgets[-1] == 0
    drafter.path, drafter.lost = [], True
    for _ in range(300):
        case.round(look_up.path)
    assert min(look_up.budgets[-299:]) > 0
    assert all(drafter.wanted[-299:]), "it may be found again"
    drafter.path, drafter.lost = [1, 2, 3, 4], False
    assert case.round(drafter.path).backers({"b": 1})[1:] == [1, 1, 1, 1]


def test_a_drafter_that_is_lost_has_no_trials_of_others() -> None:
    """Of three that draft, of which one brings nothing."""
    lost, good, bad = 1, 2, 4
    arms, leanings, arm = Arms(3, 0, lost, COST), [Leaning() for _ in range(3)], lost | good | bad
    tried, standing = 0, Standing(0)
    for _ in range(2000):
        arm = arms.choose([0.0] * 3, leanings, arm, 0, standing)
        arms.learn(arm, [0.0] * 3, leanings, [good, good], [arm & good, arm & good, arm & bad])
        tried += arm & bad > 0
    assert 16 <= tried <= 60


def test_texts_that_take_turns_have_trials_in_the_same_steps() -> None:
    """Else those that wait for a drafter would fall out of step with the others. Some begin later,
    and some wait meanwhile."""
    drafter, leanings = 2, [Leaning(), Leaning()]
    arms, standings = Arms(2, 0, drafter, COST), [Standing(0, 0.0) for _ in range(3)]
    for _ in range(100):
        arms.learn(drafter, [0.0] * 2, leanings, [], [drafter] * 8)
    told: list[set[int]] = []
    for step in range(800):
        told.append(set())
        for standing in standings[: 1 + step // 50] if step % 7 else standings[:1]:
            arms.choose([0.0] * 2, leanings, 1, 0, standing)
            told[-1].add(arms.settle([0.0] * 2, leanings, standing))
    assert [told.count({arm}) for arm in (0, drafter)] == [792, 8]


def test_expectations_are_corrected_by_what_comes() -> None:
    """A look-up that promises four tokens and brings none does not keep a good draft out."""
    case = Case(Seer([7], expects=4.0), Member([2, 3, 4]))
    for _ in range(200):
        case.b.is_ready = False
        case.round([2, 3, 4], wait_s=0.001)
    assert sum(budget > 0 for budget in case.b.budgets[-100:]) > 90


def test_waiting_ends_where_it_no_longer_pays() -> None:
    """A draft that is out for long is gone without, within a few rounds' time."""
    case = Case(Seer([1, 2], expects=0.4), Member([3, 4, 5]))
    for _ in range(50):
        case.b.is_ready = False
        case.round([3, 4, 5], wait_s=0.001)
    assert case.b.budgets[-1] > 0
    case.b.is_ready = False
    began = case.clock.now
    assert not case.hybrid.ready(case.one, began)
    until = case.hybrid.deadline(began)
    assert until is not None
    assert began < until < began + 0.02
    assert case.hybrid.deadline(until) is None, "it is past"
    assert case.hybrid.ready(case.one, until)
    case.b.is_ready = True
    assert case.hybrid.deadline(began) is None, "nobody is waited for"
    case.b.is_ready = False
    case.round([], wait_s=9.0)
    assert case.clock.now < began + 0.03


def test_a_request_bounds_the_tree_not_each_member() -> None:
    case = Case(Member([1, 2, 3]), Member([4, 5, 6]), options={"draft_tokens": 4})
    assert len(case.round(right=[])) == 1 + 4


def test_members_hear_at_once_of_a_round_after_which_nobody_drafts() -> None:
    case = Case(Member([1]), Drafter([2]))
    case.round(right=[1])
    assert case.hybrid.ready(case.one, case.clock.now)
    heard = len(case.a.wanted)
    case._end(TokenTree(9), [], wanted=False)
    assert case.a.wanted[heard:] == [False]
    case.round(right=[1])
    assert case.a.budgets[-1] == 0, "it has nothing to go on from"


def test_all_are_closed() -> None:
    a, b = Member([1]), Member([2])
    case = Case(a, b)
    case.hybrid.close(case.one)
    assert (a.closed, b.closed) == (1, 1)


def test_one_that_cannot_be_closed_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sequence: Sequence) -> None:
        raise RuntimeError("boom")

    case = Case(Member([1]), Member([2]))
    monkeypatch.setattr(case.a, "close", broken)
    case.hybrid.close(case.one)
    assert case.b.closed == 1


@pytest.mark.parametrize(
    ("method", "waits"), [("draft+ngram", True), ("lookahead+ngram", False), ("ngram", False)]
)
def test_a_window_begins_without_drafts_unless_drafters_are_asked(method: str, waits: bool) -> None:
    """Where there are none for a text, a drafter may only be told of it."""
    crowd = Crowd(Totals())
    methods = Methods(Parts(config=EngineConfig(), cost=COST, crowd=crowd, links=lambda at: None))
    one = sequence([1, 2, 3], 9)
    one.method = method
    gated = methods.of(one)
    assert isinstance(gated, GatedProposer)
    gate = gated._gate = Mock(spec=Gate)
    gated.open(one)
    gated.propose(one, TokenTree(3), 1)
    assert gate.joined.called is not waits
