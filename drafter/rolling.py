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
from drafter.nodes import Node, Tail


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
    ids, behind = (found.transpose(1, 0, 2).tolist() for found in (rolled.ids, rolled.behind))
    counts = (rolled.ids[:, :, 0] >= 0).sum(0).tolist()
    for index, ((mirror, node), known) in enumerate(zip(ends, counts, strict=True)):
        own = [line[index] for line in slots]
        mirror.free.extend(own[known - 1 :])
        gaps = behind[index][:known] if ranks > 1 else None
        _follow(mirror, node, own[: known - 1], ids[index][:known], gaps)
    return len(rolled.ids), sum(counts)


def _follow(
    mirror: Mirror,
    node: Node,
    slots: Ids[int],
    ids: Ids[Ids[int]],
    behind: Ids[Ids[float]] | None,
) -> None:
    """Takes note of what is made of a node, and of its choices one after another.

    Args:
        mirror: Its mirror.
        node: It.
        slots: Of those choices.
        ids: The likeliest tokens after the node, and after each of the choices.
        behind: How much less their scores are; None where they are not wanted.
    """
    node.rank(ids[0], None if behind is None else behind[0])
    if not slots:
        return
    further = None if behind is None else behind[1:]
    child = node.children.get(ids[0][0])
    if child is None:
        node.tail = Tail(slots, ids[1:], further)
        return
    if child.slot >= 0:
        mirror.free.append(child.slot)
    child.slot = slots[0]
    _follow(mirror, child, slots[1:], ids[1:], further)


def _certainty(ends: Ids[tuple[Mirror, Node]]) -> Certainty:
    """How far to go on after these nodes; all of them are of texts with the same chances."""
    chances = ends[0][0].chances
    limits = [mirror.limit(node) for mirror, node in ends]
    least, tokens, right = zip(*limits, strict=True)
    return Certainty(chances.bounds, chances.by_range, least, tokens, right)


def _likeliest(mirror: Mirror) -> bool:
    """Whether a mirror's tokens are the likeliest by the bare logits."""
    return mirror.sampling.greedy and not mirror.sampling.adjusts
