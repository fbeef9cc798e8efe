"""Drafts from extra heads on the target's last state (Cai et al. 2024).

The heads run once a round, at the one state from which the round's last token was chosen, for
all sequences that ended a round in one batch. Where text is drawn with keyed noise, the heads'
guesses are, too: the target will add the same. They become a tree: one chosen by joint confidence
for this round, as large as pays, or the sparse one that came with the heads.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from common.errors import ModelError
from common.model.adjust import adjust_at_once
from common.model.medusa.heads import MedusaHeads
from common.model.row import Row, biases_of
from common.model.sampling import Ranked, rank
from common.model.transfer import fetched
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.trust import Trials, Trusts, chances_of, draws
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence

RANKS = 8
"""Guesses taken of each head where the tree is grown."""


@dataclass(frozen=True)
class Guesses:
    """What the heads say of the tokens after the next: by depth, likeliest first."""

    ids: Seq[Seq[int]]
    """`[heads, ranks]`, or fewer where warpers leave fewer."""
    chances: Seq[Seq[float]]
    """`[heads, ranks]`, each given that the guess before it was right."""


@dataclass
class _Session:
    trusts: Trusts
    state: Tensor | None = None  # [hidden]; where the heads are to run
    chosen: int = 0  # the token chosen from it
    guesses: Guesses | None = None
    tree: TokenTree | None = None  # what is being checked
    nodes: dict[int, float] = field(default_factory=dict)  # its guesses: chance given the parent
    trials: Trials = field(default_factory=Trials)


class MedusaProposer(Proposer):
    """Drafts with heads.

    Args:
        heads: Made for the engine's model.
        cost: Of the engine's steps.
        most_nodes: Largest tree.
        static: Whether to use the heads' own tree rather than grow one.
    """

    def __init__(
        self, heads: MedusaHeads, cost: StepCost, most_nodes: int, *, static: bool = False
    ) -> None:
        self._heads = heads
        self._cost = cost
        self._most_nodes = most_nodes
        if static and not heads.tree:
            raise ModelError("medusa_tree: static, but these heads came without a tree")
        self._paths = heads.tree if static else None
        self._ranks = RANKS
        if self._paths is not None:
            self._ranks = 1 + max(rank for path in self._paths for rank in path)
        self._sessions: dict[Sequence, _Session] = {}
        self._trusts = Trusts(heads.num_heads)

    def open(self, sequence: Sequence) -> None:
        """Starts from what all sequences so far have taught."""
        self._sessions[sequence] = _Session(Trusts(self._heads.num_heads, self._trusts))

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds the guesses after the last round's state."""
        session = self._sessions[sequence]
        if session.state is not None:  # the first that proposes guesses for all
            self._guess()
        budget = min(budget, sequence.request.draft_tokens or self._most_nodes)
        if session.guesses is None or budget <= 0:
            return
        session.tree = tree
        if self._paths is None:
            session.nodes = self._grow(session, session.guesses, tree, budget)
        else:
            session.nodes = _lay(session.guesses, self._paths, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns how far the heads can be trusted; keeps the state to guess from."""
        session = self._sessions[sequence]
        if outcome.tree is session.tree:
            session.trusts.learn(outcome, session.nodes)
        session.tree, session.nodes, session.guesses = None, {}, None
        session.state = outcome.state if outcome.wanted and not sequence.finished else None
        session.chosen = sequence.ids[-1]

    def close(self, sequence: Sequence) -> None:
        """Forgets it."""
        self._sessions.pop(sequence, None)

    def _guess(self) -> None:
        """Runs the heads for every sequence that ended a round."""
        fresh = [
            (sequence, session, session.state)
            for sequence, session in self._sessions.items()
            if session.state is not None
        ]
        fresh.sort(key=lambda one: (not draws(one[0]), one[0].request.sampling.adjusts))
        sequences = [sequence for sequence, _, _ in fresh]
        drawn = sum(map(draws, sequences))
        adjusted = [each for each in sequences[drawn:] if each.request.sampling.adjusts]
        states = torch.stack([state for _, _, state in fresh])
        chosen = [session.chosen for _, session, _ in fresh]
        logits = self._heads.logits(states, chosen)  # [heads, sessions, V]
        best, found = [], list[Guesses]()
        if drawn < len(fresh):
            if adjusted:
                _adjust(logits[:, -len(adjusted) :], adjusted)
            parts = _of(logits, drawn, len(fresh))
            best = [self._heads.top(part, self._ranks) for part in parts]
        if drawn:  # with the first wait for a device, which has been told all by now
            found += self._drawn(_of(logits, 0, drawn), sequences[:drawn])
        if best:
            found += _likeliest(best)
        for (_, session, _), guesses in zip(fresh, found, strict=True):
            session.state, session.guesses = None, guesses

    def _drawn(self, logits: Seq[Tensor], sequences: Seq[Sequence]) -> list[Guesses]:
        """Guesses with the noise of the tokens they are of. # [heads, sequences, V], in parts"""
        ranked: list[Ranked] = []
        for part in logits:
            rows = _rows(sequences, len(ranked) // len(sequences), len(part))
            ranked += rank(part.flatten(0, 1), rows, self._ranks)
        guesses = []
        for index, sequence in enumerate(sequences):
            heads = ranked[index :: len(sequences)]
            temperature = sequence.request.sampling.temperature
            chances = [chances_of(found.behind, temperature) for found in heads]
            guesses.append(Guesses([found.ids for found in heads], chances))
        return guesses

    def _grow(
        self, session: _Session, guesses: Guesses, tree: TokenTree, budget: int
    ) -> dict[int, float]:
        """Adds nodes in the order of joint confidence, as many as make the step worth most."""
        worth, paths = self._cost.worth(), []
        for joint, path in itertools.islice(_ranked(guesses, session.trusts.factors), budget):
            worth.add(joint)
            paths.append(path)
            if worth.settled:
                break
        best = session.trials.checked(worth.best)
        return _add(guesses, paths[:best], tree)


def _likeliest(best: Seq[tuple[Tensor, Tensor]]) -> list[Guesses]:
    """Guesses without noise, by ids and chances. # [heads, sequences, ranks] each, in parts"""
    ids: list[list[list[int]]] = []
    chances: list[list[list[float]]] = []
    for part in best:
        tokens, said = fetched(*part)
        ids += tokens.tolist()
        chances += said.tolist()
    return [
        Guesses([line[index] for line in ids], [line[index] for line in chances])
        for index in range(len(ids[0]))
    ]


def _of(logits: Tensor, first: int, end: int) -> Seq[Tensor]:
    """Logits of some sequences; of each head by itself where it would take a processor long to copy
    them. # [heads, sequences, V]"""
    if end - first == logits.shape[1]:
        return [logits]
    some = logits[:, first:end]
    return [*some[:, None]] if some.is_cpu else [some.contiguous()]


def _rows(sequences: Seq[Sequence], first: int, heads: int) -> list[Row]:
    """What decides each token guessed by some heads, one after another.

    Of a path only what is committed counts as seen: what stands before a guess is another one.
    """
    return [
        Row(sequence.request.sampling, len(sequence.ids) + head, sequence.seen)
        for head in range(first, first + heads)
        for sequence in sequences
    ]


@torch.inference_mode()
def _adjust(logits: Tensor, sequences: Seq[Sequence]) -> None:
    """Bias, then penalty, in place, as the target's are changed. # [heads, sequences, V]

    What is committed is the same for all heads.
    """
    if logits.is_cpu:
        for index, sequence in enumerate(sequences):
            _adjust_few(logits[:, index], sequence)
    else:
        _adjust_whole(logits, sequences)


def _adjust_few(logits: Tensor, sequence: Sequence) -> None:
    """Only ids that change, for a CPU: one operation does for all heads. # [heads, V]"""
    sampling = sequence.request.sampling
    if sampling.logit_bias:
        ids, biases = biases_of(sampling, logits.device)
        logits.index_add_(1, ids, biases.to(logits.dtype).expand(len(logits), -1))
    if sampling.penalises:
        seen, factor = sequence.seen, sampling.repetition_penalty
        assert seen is not None, "a repetition penalty needs the tokens seen"
        ids = torch.from_numpy(np.flatnonzero(seen.numpy()))  # in a sixth of torch's time
        found = logits[:, ids]
        logits[:, ids] = torch.where(found < 0, found * factor, found / factor)


def _adjust_whole(logits: Tensor, sequences: Seq[Sequence]) -> None:
    """Whole lines of all texts, for a device, which is not waited for. # [heads, sequences, V]"""
    rows = [
        Row(each.request.sampling, len(each.ids), each.seen)
        for each in sequences
        for _ in range(len(logits))
    ]
    lines = logits.transpose(0, 1)  # those of a text side by side
    wide = lines.flatten(0, 1).float()
    adjust_at_once(wide, rows)
    lines.copy_(wide.view(lines.shape))


def _ranked(guesses: Guesses, factors: list[float]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Paths of ranks in the order of their joint chances, parents before children."""
    chances = [
        [min(chance * factor, 1.0) for chance in said]
        for said, factor in zip(guesses.chances, factors, strict=True)
    ]
    start: tuple[int, ...] = (0,)
    heap = [(-chances[0][0], 1.0, start)]  # second: the chance of all but the last rank
    while heap:
        joint, before, path = heapq.heappop(heap)
        yield -joint, path
        depth, rank = len(path), path[-1]
        if depth < len(chances):
            heapq.heappush(heap, (joint * chances[depth][0], -joint, (*path, 0)))
        if rank + 1 < len(chances[depth - 1]):
            sibling = (*path[:-1], rank + 1)
            heapq.heappush(heap, (-before * chances[depth - 1][rank + 1], before, sibling))


def _add(guesses: Guesses, paths: Seq[tuple[int, ...]], tree: TokenTree) -> dict[int, float]:
    """Adds paths of ranks, parents before children; returns each node's own chance."""
    nodes: dict[tuple[int, ...], int] = {(): 0}
    chances = {}
    for path in paths:
        depth, rank = len(path) - 1, path[-1]
        node = tree.add(nodes[path[:-1]], guesses.ids[depth][rank])
        nodes[path] = node
        chances[node] = guesses.chances[depth][rank]
    return chances


def _lay(
    guesses: Guesses, paths: tuple[tuple[int, ...], ...], tree: TokenTree, budget: int
) -> dict[int, float]:
    """Adds a static tree, as far as the budget goes."""
    known = [*map(len, guesses.ids)]
    inside = [
        path
        for path in sorted(paths, key=_by_depth)
        if len(path) <= len(known) and all(map(operator.lt, path, known))
    ]
    return _add(guesses, inside[:budget], tree)


def _by_depth(path: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return len(path), path
