"""Several tokens of every branch in one call of the model.

Where a pass takes a tenth of a millisecond, what lies between two passes costs as much. A branch of
greedy tokens needs nothing in between: each is the likeliest after the one before.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from common.model.native import Certainty
from common.model.runner import Runner
from drafter.item import Item
from drafter.mirror import Mirror
from drafter.nodes import Node


def levels(batch: Ids[Item], most: int) -> int:
    """How many further tokens may follow the next one of every branch in the same call.

    Args:
        batch: What is to be computed.
        most: No more than these.

    Returns:
        0 to `most`; 0 where some token is for more than the likeliest logit to say.
    """
    for item in batch:
        mirror = item.mirror
        if not item.ends:
            continue
        if mirror.round is None or mirror.wants_drawn or not _likeliest(mirror):
            return 0
        deepest = max(node.position for node in item.ends)
        most = min(
            most,
            mirror.lacking - 1,
            len(mirror.free) // len(item.ends),
            len(mirror.ids) + mirror.room - 1 - deepest,
        )
    return max(most, 0) if any(item.ends for item in batch) else 0


def roll(runner: Runner, batch: Ids[Item], count: int, news: int = -1) -> tuple[int, int]:
    """Computes a batch, and further tokens of every branch.

    Args:
        runner: The draft model; it `rolls`.
        batch: What is to be computed.
        count: Most further tokens; see `levels`.
        news: A descriptor; where it can be read from, no further ones are begun.

    Returns:
        Passes made, and draft tokens chosen.
    """
    ends = [(item.mirror, node) for item in batch for node in item.ends]
    slots = [[mirror.free.pop() for mirror, _ in ends] for _ in range(count)]
    ranks = max(mirror.ranks for mirror, _ in ends)
    rolled = runner.roll(
        [item.segment() for item in batch],
        slots,
        ranks,
        _certainty(ends) if ranks > 1 else None,
        news,
    )
    ids, behind = rolled.ids.tolist(), rolled.behind.tolist()
    chosen = 0
    for index, (mirror, node) in enumerate(ends):
        used = 0
        for level, (tokens, gaps) in enumerate(zip(ids, behind, strict=True)):
            if tokens[index][0] < 0:
                break
            if level:
                node = _followed(mirror, node, slots[level - 1][index])
            node.rank(tokens[index], gaps[index] if ranks > 1 else None)
            chosen, used = chosen + 1, level
        mirror.free.extend(line[index] for line in slots[used:])
    return len(ids), chosen


def _certainty(ends: Ids[tuple[Mirror, Node]]) -> Certainty:
    """How far to go on after these nodes; all of them are of texts with the same chances."""
    chances = ends[0][0].chances
    limits = [mirror.limit(node) for mirror, node in ends]
    least, from_level = zip(*limits, strict=True)
    return Certainty(chances.bounds, chances.by_range, least, from_level)


def _followed(mirror: Mirror, node: Node, slot: int) -> Node:
    """The node of the choice after one, in a slot that was filled for it."""
    assert node.choice is not None
    child = node.child(node.choice)
    if child.slot >= 0:
        mirror.free.append(child.slot)
    child.slot = slot
    return child


def _likeliest(mirror: Mirror) -> bool:
    """Whether a mirror's tokens are the likeliest by the bare logits."""
    return mirror.sampling.greedy and not mirror.sampling.adjusts
