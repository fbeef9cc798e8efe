"""A disposable copy of one session: the committed text, and what is drafted after it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial

from common import fence
from common.inbox import attempt
from common.model.kv_cache import KvLease
from common.sampling_params import SamplingParams
from common.text_length import doublings
from drafter.branch import Branch, Finished, Limit, Round
from drafter.nodes import Node, drawn_from
from drafter.outlook import Chances, ChoiceKind, Outcome, outcomes
from drafter.text import Text

_WAVE = 3
"""Branches that are drafted together ahead of an outcome. The likeliest are there early so, however
short a pass of the target is; what a wave costs beside its rows is less than what waits for it."""

_MOST_RESTING = 32
"""Committed tokens that gather while no draft is wanted; they take one pass together."""


@dataclass(eq=False)
class Mirror:
    """One session's mirror.

    Invariant: the cache holds the keys and values of what is computed of the text, and those of
    every computed node in the node's slot. A node's position is one of the text, see `Text`.
    """

    incarnation: int
    """The verifier's count of its Opens."""
    sampling: SamplingParams
    """How to choose; the request's own sampling has the noise that leads to the same choices."""
    text: Text
    """The committed ids."""
    scratch: KvLease
    """Slots of drafted nodes."""
    wants_drawn: bool = False
    """Whether to say what tokens are drawn from."""
    vocab_size: int = 0
    """Ids to choose among, where the verifier's model has fewer than this one; else 0."""
    round: Round | None = None
    """The outcome a branch is due for, or was handed over for; None where nothing is drafted."""
    answered: bool = False
    """Whether it was handed over."""
    warm: bool = False
    """Whether the first prefill is done."""
    used: int = 0
    """Number of the last message; the least recently used mirror is dropped first."""
    told_at: float | None = None
    """When the round came whose branch waits for its first pass, by the monotonic clock."""
    chances: Chances = field(default_factory=Chances)
    """What rounds have shown, of this text and others of its kind."""
    chain: list[Node] = field(default_factory=list)
    """What the verifier is checking, or is being drafted for it."""
    branches: list[Branch] = field(default_factory=list)
    """In the making, ahead of the next outcome."""
    free: list[int] = field(default_factory=list)
    """Scratch slots no node has."""
    unplanned: bool = False
    """Whether further outcomes of the chain in flight may be drafted for: see `look_ahead`."""
    root: Node = field(init=False)
    """The last committed id."""
    _lesson: tuple[Seq[Node], Node, Seq[int]] | None = None  # see `Chances.observe`
    _outlook: list[tuple[Node, int]] | None = None  # further outcomes, the likeliest last
    _ahead: dict[Outcome, int] = field(
        default_factory=dict
    )  # begun; lengths of those that are sent
    _due_branch: Branch = field(init=False)  # whose tokens the chain has
    _ends_known: bool = False  # whether the bonus after the whole chain has its branch

    def __post_init__(self) -> None:
        self.root = self._last()

    @property
    def kind(self) -> ChoiceKind:
        """Kind of its choices, as long as the text is now."""
        return ChoiceKind(self.sampling.greedy, self.wants_drawn, doublings(self.text.length))

    @property
    def due(self) -> bool:
        """Whether the verifier waits for something: a warm mirror, or a branch.

        Where it wants none, what is committed meanwhile gathers: a pass for each round would take
        time from others, the target among them where both share a machine.
        """
        if self.round is None:
            return self.text.pending > (_MOST_RESTING if self.warm else 0)
        return self.text.pending > 0 or not self.answered

    @property
    def ranks(self) -> int:
        """How many of the best tokens after each node to know, the choice among them."""
        if self.round is None or self.wants_drawn:  # what follows a rejected one is drawn anew
            return 1
        return 1 + max(self.round.fanout, bool(self.round.least))

    @property
    def lacking(self) -> int:
        """Passes until the branch that is due has all its tokens, or those that go ahead have."""
        if self.round is None:
            return 0
        if not self.answered:
            return self._due_branch.lacking
        return max((branch.lacking for branch in self.branches), default=1)

    def frontier(self) -> list[Node]:
        """Nodes to compute next, the most urgent first; none where there is nothing to draft.

        While a branch is due that is its last token. Then come the end of the chain in flight,
        and the ends of the branches for its outcomes.
        """
        if self.round is None or self.text.pending:
            return []
        if not self.answered:
            return self.chain[-1:]
        ends = [branch.leaf for branch in self.branches if branch.lacking]
        if self.chain and not self.chain[-1].computed and self.round.fanout:
            ends.insert(0, self.chain[-1])
        return ends

    def place(self, node: Node) -> bool:
        """Gives a node a slot, if it has none; False where there is none left."""
        if node.slot < 0:
            if not self.free and not self.answered:
                self._keep_only_chain()
            if not self.free or node.position >= self.text.limit:
                return False
            node.slot = self.free.pop()
        return True

    def await_next(self, opened: Round) -> None:
        """Drafts ahead of one more id, though nothing is due.

        Args:
            opened: As if a round had ended with the last id.
        """
        self.round = opened
        self.answered = self.unplanned = True

    def advance(self, ended: Round) -> list[tuple[int, int]]:
        """Takes over a round's outcome; keeps what was drafted right, where the text goes on.

        Args:
            ended: The round; where the text takes its ids, there are slots for them.

        Returns:
            Slots to copy keys and values from and to, before anything else is computed.
        """
        self.learn()
        sent = 0
        if self._checked_by(ended):
            self._lesson = (self.chain, self.root, ended.ids)
            sent = self._ahead.get((ended.accepted, ended.ids[-1]), 0)
        right = self.root.follow(ended.ids) if self.text.takes(len(ended.ids)) else []
        moves = self._keep(right)
        known = right[-1] if len(right) == len(ended.ids) else None
        self._free_all_but(known)
        self.text.extend(ended.ids)
        self.root = known or self._last()
        self.root.parent = None
        self._aim(ended, ended.verifying or min(sent, ended.draft_tokens))
        return moves

    def learn(self) -> None:
        """Counts what the last round has shown: when there is time, for drafts may be waited for.

        Another round counts it in any case; with the mirror it is forgotten.
        """
        lesson, self._lesson = self._lesson, None
        if lesson is not None:
            attempt(partial(self.chances.observe, *lesson))

    def chosen(self, node: Node) -> None:
        """Takes note that a node was computed: the chain or its branch grows by its choice."""
        if self.round is None:
            return
        if not self.answered:
            self._grow_chain()
        for branch in self.branches:
            if branch.leaf is node:
                branch.grow(self.chances)

    def limit(self, node: Node) -> Limit:
        """How far to go on after a node without a look at what comes of it."""
        if self.round is None:
            return Limit(())
        ends = self.branches if self.answered else [self._due_branch]
        for branch in ends:
            if branch.leaf is node:
                return Limit(branch.outcome.least, len(branch.ids), branch.right)
        return Limit(self.round.least, -1)  # a bonus comes first

    def finished(self) -> list[Finished]:
        """Branches to be sent: the one that is due, or a wave of those that go ahead.

        All of a wave travel together: each message costs both ends more than it carries.
        """
        if self.round is None or self.text.pending:
            return []
        done = []
        if not self.answered and not self._due_branch.lacking:
            self.answered = self.unplanned = True
            drawn = drawn_from(self.chain)
            self.chain = self.chain[: len(drawn) or None]
            done.append(Finished(self.round, tuple(node.token for node in self.chain), drawn))
        if self.answered and not self._ends_known and self.chain and self.chain[-1].computed:
            self._look_beyond()
        if self.unplanned or any(branch.lacking for branch in self.branches):
            return done
        for branch in self.branches:
            drawn = drawn_from(branch.nodes()[-len(branch.ids) :]) if self.wants_drawn else ()
            ids = tuple(branch.ids[: len(drawn) or None])
            self._ahead[branch.outcome.accepted, branch.outcome.ids[-1]] = len(ids)
            done.append(Finished(branch.outcome, ids, drawn))
        self.unplanned = len(self.branches) > 0
        self.branches = []
        return done

    def look_ahead(self) -> None:
        """Plans a wave of branches, for the likeliest outcomes of the chain in flight."""
        self.unplanned = False
        if self.round is None or not self.round.draft_tokens or not self.round.fanout:
            return
        begun = len(self.branches) + (not self._ends_known)  # that after all of the chain, if any
        most = len(self.free) // (self.round.draft_tokens + 1) - begun
        if self._outlook is None:
            found = outcomes(self.root, self.chain, self.chances, self.round.fanout)
            self._outlook = found[::-1]
        wave = min(most, _WAVE)
        while self._outlook and wave > 0:
            node, token = self._outlook.pop()
            if (node.position - self.root.position, token) not in self._ahead:
                self._start(node, token, self.round.draft_tokens)
                wave -= 1

    def _aim(self, ended: Round, checked: int) -> None:
        """Sets what is to be drafted after an outcome, from what is drafted already.

        Args:
            ended: The outcome.
            checked: Tokens of its branch that the verifier has, or will have in a moment.
        """
        self.round = ended if ended.draft_tokens or ended.verifying else None
        self.answered = self.unplanned = checked > 0
        self.branches, self._ahead, self._ends_known = [], {}, False
        self._outlook = None
        wanted, least = (checked, ()) if checked else (ended.draft_tokens, ended.least)
        outcome = ended._replace(least=least)
        self._due_branch = Branch(outcome, self.root, min(wanted, self.text.room))
        self._grow_chain()
        if len(self.chain) < checked:
            self.round, self.unplanned = None, False  # it checks what is not known here
        elif self.answered and self.chain[-1].computed:
            self._look_beyond()

    def _checked_by(self, ended: Round) -> bool:
        """Whether a round checked the chain in flight, and nothing else was accepted in it."""
        path_hash = fence.extend(self.text.path_hash, [node.token for node in self.chain])
        same = (ended.base, ended.path_hash) == (self.text.length, path_hash)
        return same and ended.accepted == len(ended.ids) - 1

    def _grow_chain(self) -> None:
        """Extends the chain by what is chosen already."""
        self._due_branch.grow(self.chances)
        self.chain = self._due_branch.nodes()

    def _look_beyond(self) -> None:
        """Plans the branch for the outcome in which all of the chain is right."""
        assert self.round is not None
        self._ends_known, self._outlook = True, None  # more can be said
        end = self.chain[-1]
        room = len(self.free) > self.round.draft_tokens
        if end.choice is not None and room and self.round.fanout and self.round.draft_tokens:
            # The bonus is known one step after those of the others: one token less, or all wait.
            self._start(end, end.choice, max(self.round.draft_tokens - bool(self.branches), 1))

    def _start(self, last: Node, bonus: int, wanted: int) -> None:
        """Begins a branch after the outcome (the chain up to `last`, bonus)."""
        assert self.round is not None
        accepted = [node.token for node in last.path()]
        outcome = self.round._replace(
            base=self.text.length,
            path_hash=fence.extend(self.text.path_hash, [node.token for node in self.chain]),
            accepted=len(accepted),
            ids=(*accepted, bonus),
            verifying=0,
        )
        space = self.text.limit - (last.position + 1)  # after the bonus
        branch = Branch(outcome, last.child(bonus), min(wanted, space))
        branch.grow(self.chances)
        if branch.wanted > 0:
            self.branches.append(branch)
            self._ahead[len(accepted), bonus] = 0

    def _last(self) -> Node:
        """A node of the last committed id."""
        return Node(self.text.ids[-1], len(self.text.ids) - 1)

    def _keep(self, right: Seq[Node]) -> list[tuple[int, int]]:
        """Counts computed nodes that are committed now as such; returns what is to be copied."""
        moves = []
        for node in right:
            if not node.computed or self.text.computed < node.position:
                break
            moves.append((node.slot, int(self.text.lease.slots[node.position])))
            self.text.computed = node.position + 1
        return moves

    def _free_all_but(self, root: Node | None) -> None:
        """Takes back the slots of nodes that are committed, or can no longer be."""
        kept = set(root.below()) if root is not None else set()
        for node in (self.root, *self.root.below()):
            if node in kept:
                continue
            if node is not root:
                self._free_tail(node)
            if node.slot >= 0:
                self.free.append(node.slot)
                node.slot = -1

    def _free_tail(self, node: Node) -> None:
        if node.tail is not None:
            self.free.extend(node.tail.slots)
            node.tail = None

    def _keep_only_chain(self) -> None:
        """Takes back the slots of all other nodes: the verifier waits for it."""
        kept = {self.root, *self.chain}
        for node in list(self.root.below()):
            if node not in kept:
                self.free.extend(node.slots())
        for node in kept:
            self._free_tail(node)
            node.children = {
                token: child for token, child in node.children.items() if child in kept
            }
