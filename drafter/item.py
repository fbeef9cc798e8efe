"""One mirror's part of a pass, and what decides the token after a node of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from common.model.distribution import Distribution
from common.model.row import Row
from common.model.segment import PathRows, Segment
from common.model.tree import Drawn
from drafter.mirror import Mirror
from drafter.nodes import Node
from drafter.reply import Key

_MOST_DRAWN = 64
"""Tokens of a distribution that is sent; verifiers ask for fewer, but ties may add some."""

_LEAST_CHANCE = np.finfo(np.float32).tiny
"""Of a token that is sent. Messages hold float32, in which a smaller one is 0 or nearly so, and
verifiers refuse such a distribution. Noise draws no token that is 2^-40 as likely as another."""


class Item(NamedTuple):
    """One mirror's part of a step: committed ids to catch up with, or drafted nodes."""

    key: Key
    """Whose."""
    mirror: Mirror
    """The same."""
    committed: int = 0
    """Ids to compute, from `Text.computed` on."""
    nodes: Seq[Node] = ()
    """Nodes to compute; each has a slot, and so have those before it."""
    ends: Seq[Node] = ()
    """Nodes whose next token is to be chosen after the pass."""

    @property
    def rows(self) -> int:
        """Rows it takes of the pass."""
        return self.committed + len(self.nodes)

    def segment(self) -> Segment:
        """What the model is to compute."""
        text, slots = self.mirror.text, self.mirror.text.lease.slots
        if not self.nodes:
            start, end = text.computed, text.computed + self.committed
            last = [self.committed - 1] if self.ends else []
            return Segment(text.ids[start:end], start, slots, wanted=last)
        tokens = [node.token for node in self.nodes]
        paths = [[before.slot for before in node.path()] for node in self.nodes]
        return PathRows(tokens, len(text.ids), slots, paths, wanted=range(len(tokens)))


def row_of(mirror: Mirror, node: Node) -> Row:
    """What decides the token after a node."""
    text, position = mirror.text, mirror.text.dropped + node.position + 1
    path = tuple(before.token for before in node.path()) if text.seen is not None else ()
    return Row(params=mirror.sampling, position=position, seen=text.seen, path=path)


def sent(distribution: Distribution) -> Drawn | None:
    """What a token is drawn from, for its verifier.

    None where that is too much to be sent: the token then passes for a guess, which is checked
    more strictly.
    """
    few = distribution.listed()
    ids, chances = few.ids, few.chances
    real = chances >= _LEAST_CHANCE
    if np.count_nonzero(real) > _MOST_DRAWN:
        return None
    return Drawn(tuple(ids[real].tolist()), tuple(chances[real].tolist()))
