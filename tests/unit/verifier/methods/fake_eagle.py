"""A head that says what it is told to, and texts whose states say where they are of."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.model.blocks import BlockManager
from common.model.drafting_head import Going, Guessed
from common.model.keyed_head import Behind, KeyedHead
from common.model.kv_cache import KvLease
from common.model.output import Computed
from common.model.tree import TokenTree
from tests.unit.common.model.eagle import going as by_depths
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.methods.eagle import EagleProposer
from verifier.proposer import Outcome
from verifier.sequence import Sequence

VOCAB, BLOCKS, BLOCK_TOKENS = 50, 100, 16
SLOTS = (BLOCKS + 1) * BLOCK_TOKENS


def said(*depths: Seq[float]) -> Tensor:
    """Logits by which token r of a depth has the r-th chance, and others what is left. # [D, V]"""
    lines = [[*own, *[(1 - sum(own)) / (VOCAB - len(own))] * (VOCAB - len(own))] for own in depths]
    return torch.tensor(lines).clamp_min(1e-9).log()


@dataclass
class FakeDraft:
    """Says the same of every row."""

    head: FakeHead
    logits: Tensor
    depth: int = 0

    def further(self, parents: Seq[int], tokens: Seq[int]) -> Tensor:
        self.depth += 1
        self.head.asked.append(([*parents], [*tokens]))
        self.logits = self.head.at(self.depth, len(parents))
        return self.logits


class FakeHead(KeyedHead):
    """By depth, the last one for all further ones.

    Args:
        logits: Of the tokens that it can guess. # [depths, W]
        ids: See `KeyedHead`.
    """

    def __init__(self, logits: Tensor, ids: Tensor | None = None, slots: int = SLOTS) -> None:
        super().__init__(ids, vocab_size=VOCAB, slots=slots)
        self.logits, self.followed = logits, 2
        self.drafts: list[list[Behind]] = []
        """What it drafted behind."""
        self.written: list[Behind] = []
        """What it wrote beside that."""
        self.asked: list[tuple[list[int], list[int]]] = []
        """What it went on from: parents and tokens."""

    def write(self, texts: Seq[Behind]) -> None:
        self.written += texts

    def draft(self, texts: Seq[Behind]) -> FakeDraft:
        self.drafts.append([*texts])
        return FakeDraft(self, self.at(0, len(texts)))

    def roll(self, texts: Seq[Behind], going: Going) -> list[Guessed]:
        return by_depths.roll(self, texts, going)

    def at(self, depth: int, rows: int) -> Tensor:
        """What it says of each row."""
        return self.logits[min(depth, len(self.logits) - 1)].repeat(rows, 1)


@dataclass
class Lines:
    """What the committer does for texts of one proposer."""

    proposer: EagleProposer
    numbers: dict[Sequence, int] = field(default_factory=dict)
    blocks: BlockManager = field(default_factory=lambda: BlockManager(BLOCKS, BLOCK_TOKENS))

    def text(self, prompt: Seq[int], tokens: int = 12, **options: object) -> Sequence:
        """One that is drafted for, and whose prompt is computed but for the last token."""
        one = self.other(prompt, tokens, **options)
        self.proposer.open(one)
        if len(prompt) > 1:
            self.chunk(one, len(prompt) - 1)
        return one

    def other(self, prompt: Seq[int], tokens: int = 12, **options: object) -> Sequence:
        """One that nothing is known of."""
        one = sequence(prompt, tokens, **options)
        one.lease = KvLease(self.blocks)
        assert one.lease.reserve(len(prompt) + tokens)
        self.numbers[one] = len(self.numbers)
        one.watch_ids(VOCAB, torch.device("cpu"))
        return one

    def states(self, one: Sequence, positions: Seq[int]) -> Tensor:
        """Which text, and where. # [n, 2]"""
        return torch.tensor([[self.numbers[one], position] for position in positions])

    def chunk(self, one: Sequence, rows: int) -> None:
        """A part of a prompt is computed."""
        self._show(one, range(one.computed, one.computed + rows))
        one.computed += rows

    def end(
        self,
        one: Sequence,
        tree: TokenTree | None = None,
        accepted: Seq[int] = (),
        bonus: int | None = 7,
        *,
        wanted: bool = True,
        heard: bool = True,
    ) -> None:
        """A round ends, of which the proposer hears where it is its text."""
        tree = tree or TokenTree(one.ids[-1])
        ids = [tree.ids[node] for node in accepted]
        ids += [] if bonus is None else [bonus]
        first, root = one.computed, len(one.ids) - 1
        one.commit(ids)
        self._show(one, range(first, root + 1 + len(accepted)))
        one.computed = root + 1 + len(accepted)
        output = Computed(logits=torch.zeros(1, 0), states=torch.zeros(1, 4))
        outcome = Outcome(
            tree=tree, choices=(), accepted=accepted, ids=ids, output=output, wanted=wanted
        )
        if heard:
            self.proposer.observe(one, outcome)

    def rest(self, one: Sequence, ids: Seq[int]) -> None:
        """Several rounds end at once, whose states nobody sees."""
        one.commit(ids)
        one.computed += len(ids)
        outcome = Outcome(
            tree=TokenTree(one.ids[-1]), choices=(), accepted=(), ids=ids, wanted=False
        )
        self.proposer.observe(one, outcome)

    def tree(self, one: Sequence, budget: int = 64) -> TokenTree:
        """What it proposes."""
        tree = TokenTree(one.ids[-1])
        self.proposer.propose(one, tree, budget)
        return tree

    def _show(self, one: Sequence, positions: Seq[int]) -> None:
        if self.proposer.reads(one, positions[0]):
            self.proposer.read(one, positions[0], self.states(one, positions))


def paths(tree: TokenTree) -> list[list[int]]:
    """Of all nodes but the root."""
    return [[tree.ids[n] for n in tree.path(node)] for node in range(1, len(tree))]
