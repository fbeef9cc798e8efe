"""Several tokens of every branch in one call of the model.

Where a pass takes a tenth of a millisecond, what lies between two passes costs as much. A branch
needs nothing in between: each token is the likeliest after the one before, or drawn with the noise
of its position, once biases and a penalty have changed its logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from common.model.roll import Certainty, RollOptions
from common.model.runner import Runner
from common.model.sampling import rank
from drafter.item import Item, row_of
from drafter.mirror import Mirror
from drafter.nodes import Node, Tail
from drafter.outlook import Chances


def levels(batch: Seq[Item], most: int) -> int:
    """How many further tokens may follow the next one of every branch in the same call.

    Args:
        batch: What is to be computed.
        most: No more than these.

    Returns:
        0 to `most`; 0 where some token takes more than the logits and noise.
    """
    for item in batch:
        mirror = item.mirror
        if not item.ends:
            continue
        if mirror.round is None or mirror.wants_drawn or mirror.vocab_size:
            return 0
        deepest = max(node.position for node in item.ends)
        most = min(
            most,
            mirror.lacking - 1,
            len(mirror.free) // len(item.ends),
            mirror.text.limit - 1 - deepest,
        )
    return max(most, 0) if any(item.ends for item in batch) else 0


def roll(runner: Runner, batch: Seq[Item], count: int, news: int = -1) -> tuple[int, int]:
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
    rows = [row_of(mirror, node) for mirror, node in ends]
    drawn = not all(row.bare for row in rows)
    options = RollOptions(
        best=max(ranks, 2) if drawn else ranks,
        certainty=_certainty(ends) if ranks > 1 else None,
        news=news,
        drawings=[row.drawing for row in rows] if drawn else (),
    )
    rolled = runner.roll([item.segment() for item in batch], slots, options)
    ids, behind = (found.transpose(1, 0, 2).tolist() for found in (rolled.ids, rolled.behind))
    counts = (rolled.ids[:, :, 0] >= 0).sum(0).tolist()
    for index, ((mirror, node), known) in enumerate(zip(ends, counts, strict=True)):
        own = [line[index] for line in slots]
        if not known:  # nobody was sure of its choice, and so no token follows
            assert rolled.output is not None
            mirror.free.extend(own)
            unsure = rank(rolled.output.logits[index : index + 1], [rows[index]], ranks)[0]
            node.rank(unsure.ids, unsure.behind if ranks > 1 else None)
            continue
        mirror.free.extend(own[known - 1 :])
        best, gaps = ids[index][:known], behind[index][:known]
        if drawn:  # else there is a score for every token
            best = [_survivors(line, ranks) for line in best]
            gaps = [line[: len(kept)] for line, kept in zip(gaps, best, strict=True)]
        _follow(mirror, node, own[: known - 1], best, gaps if ranks > 1 else None)
    return len(rolled.ids), sum(counts)


def _survivors(ids: Seq[int], most: int) -> Seq[int]:
    """The first of some tokens, without the places where there are none."""
    return ids[: ids.index(-1) if -1 in ids[:most] else most]


def _follow(
    mirror: Mirror,
    node: Node,
    slots: Seq[int],
    ids: Seq[Seq[int]],
    behind: Seq[Seq[float]] | None,
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


def _certainty(ends: Seq[tuple[Mirror, Node]]) -> Certainty:
    """How far to go on after these nodes."""
    chances = [mirror.chances.by_range for mirror, _ in ends]
    limits = [mirror.limit(node) for mirror, node in ends]
    least, tokens, right = zip(*limits, strict=True)
    return Certainty(Chances.bounds, chances, least, tokens, right)
