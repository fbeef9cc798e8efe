"""What a roll has to be, of whichever decoder: rows that go on as each would step after step."""

from __future__ import annotations

import math
import random
import socket
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from common.model.kv_cache import KvLease
from common.model.roll import Certainty, Limit, Rolled, RollOptions
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import rank
from common.model.seen import seen
from common.model.segment import Segment
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams


def alone(target: Runner, ids: list[int]) -> Tensor:
    """Logits after a text. # [V]"""
    return _last(target, ids, 1)[0]


def _last(
    target: Runner, ids: list[int], count: int, behind: tuple[int, KvLease] | None = None
) -> Tensor:
    """Logits after the last tokens of a text, which may stand behind one. # [count, V]"""
    start, lease = behind or (0, KvLease(target.pool.blocks))
    assert lease.reserve(start + len(ids))
    wanted = range(len(ids) - count, len(ids))
    logits = target.forward([Segment(ids, start, lease.slots, wanted=wanted)]).logits
    if not behind:
        lease.release()
    return logits


def is_step_after_step(target: Runner, levels: int) -> None:
    """Two rows of one segment and one of another go on with what is likeliest."""
    texts = [[5, 9, 33, 7, 80, 12], [3, 4]]
    wanted = [[3, 5], [1]]
    leases = [KvLease(target.pool.blocks) for _ in texts]
    spare = KvLease(target.pool.blocks)
    assert spare.reserve(3 * levels + 1)
    segments = []
    for lease, ids, rows in zip(leases, texts, wanted, strict=True):
        assert lease.reserve(len(ids))
        segments.append(Segment(ids, 0, lease.slots, wanted=rows))
    slots = spare.slots[: 3 * levels].reshape(levels, 3).tolist()
    rolled = target.roll(segments, slots, RollOptions(3))
    _check_likeliest(target, rolled, [texts[0][:4], texts[0], texts[1]])
    for lease in (*leases, spare):
        lease.release()


def is_step_after_step_behind_a_tree(target: Runner, levels: int) -> None:
    """From ends of several branches, behind a text that other blocks of keys begin after."""
    ids = np.random.default_rng(0).integers(3, 99, 62).tolist()
    lease, spare = KvLease(target.pool.blocks), KvLease(target.pool.blocks)
    assert lease.reserve(80)
    assert spare.reserve(3 * levels + 1)
    tree = TokenTree.chain(7, (11, 12))
    ends = [2, tree.add_path((21, 12)), tree.add_path((11, 33, 5))]
    target.forward([Segment(ids, 0, lease.slots, wanted=[])])
    segment = Segment(tree.ids, len(ids), lease.slots, tree=tree, wanted=ends)
    rolled = target.roll([segment], spare.slots[: 3 * levels].reshape(levels, 3), RollOptions(3))
    paths = [[7, *(tree.ids[node] for node in tree.path(end))] for end in ends]
    _check_likeliest(target, rolled, paths, (len(ids), lease))
    lease.release()
    spare.release()


def _check_likeliest(
    target: Runner,
    rolled: Rolled,
    paths: list[list[int]],
    behind: tuple[int, KvLease] | None = None,
) -> None:
    """Rows went on as these texts would, each alone."""
    for index, path in enumerate(paths):
        ids = [*path, *rolled.ids[:-1, index, 0].tolist()]
        for level, logits in enumerate(_last(target, ids, len(rolled.ids), behind)):
            top = logits.topk(3)
            assert rolled.ids[level, index].tolist() == top.indices.tolist()
            gaps = (top.values[0] - top.values).tolist()
            assert rolled.behind[level, index].tolist() == gaps


def with_draws_is_step_after_step(
    target: Runner, levels: int, *, penalty: float = 1.0, bias: float = 0.0
) -> None:
    """Each row in a way of its own; of one of them only one token survives."""
    params = [
        SamplingParams(temperature=0.9, seed=5),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, top_k=1, seed=1 << 63),
        SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01, seed=7),
    ]
    if bias:
        params = [replace(each, logit_bias={9: bias, 40: bias, 41: -bias}) for each in params]
    _check_drawn(target, levels, [replace(each, repetition_penalty=penalty) for each in params])


def with_changes_is_step_after_step(target: Runner, levels: int, seed: int) -> None:
    """Logits of some rows change, by what they draw as well; those of one beside them do not."""
    draw = random.Random(seed)
    ids = draw.sample(range(3, 99), 4)
    biases: list[dict[int, float]] = [
        {},
        dict(zip(ids, (math.inf, -math.inf, -1e9, 0.0), strict=True)),
        dict.fromkeys(range(3, 90, 2), -1e9),
        {ids[0]: 3.0, ids[1]: 2.5},
    ]
    params = [
        SamplingParams(
            temperature=draw.choice([0.0, 0.9]),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=penalty,
            logit_bias=biases.pop(draw.randrange(len(biases))),
            seed=draw.getrandbits(64),
        )
        for penalty in draw.sample([0.2, 0.7, 1.3, 8.0], 3)
    ]
    params.insert(draw.randrange(4), SamplingParams(temperature=0.9, seed=seed))
    _check_drawn(target, levels, params)


def _check_drawn(target: Runner, levels: int, params: list[SamplingParams]) -> None:
    """Rows of four texts went on as each would alone."""
    texts = [[5, 9, 33], [3, 4], [80, 12, 7, 5], [61]]
    before = [seen(ids[:-1], target.loaded.vocab_size, target.loaded.device) for ids in texts]
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(64 + 4 * levels)
    segments = [
        Segment(ids, 0, lease.slots[16 * i : 16 * (i + 1)], wanted=[len(ids) - 1])
        for i, ids in enumerate(texts)
    ]
    slots = lease.slots[64 : 64 + 4 * levels].reshape(levels, 4).tolist()
    drawings = [
        Row(each, len(ids), mask, tuple(ids[-1:])).drawing
        for each, ids, mask in zip(params, texts, before, strict=True)
    ]
    rolled = target.roll(segments, slots, RollOptions(3, drawings=drawings))
    assert len(rolled.ids) == levels + 1
    for index, (text, each) in enumerate(zip(texts, params, strict=True)):
        ids = [*text, *rolled.ids[:-1, index, 0].tolist()]
        rows = [
            Row(each, len(text) + level, before[index], tuple(ids[len(text) - 1 :][: level + 1]))
            for level in range(levels + 1)
        ]
        ranked = rank(_last(target, ids, levels + 1), rows, 3)
        for level, expected in enumerate(ranked):
            lost = 3 - len(expected.ids)
            assert rolled.ids[level, index].tolist() == [*expected.ids, *[-1] * lost]
            gaps = [*expected.behind, *[math.inf] * lost]
            assert rolled.behind[level, index].tolist() == pytest.approx(gaps, rel=1e-6)
    lease.release()


def ends_where_rows_are_too_unlikely(target: Runner, seed: int, levels: int = 6) -> None:
    """Each at the level where its chances multiply to less, and the others go on as alone."""
    draw, rows = random.Random(seed), 4
    lease, spare = KvLease(target.pool.blocks), KvLease(target.pool.blocks)
    assert lease.reserve(rows)
    assert spare.reserve(rows * levels)
    segment = Segment([draw.randrange(99) for _ in range(rows)], 0, lease.slots, wanted=range(rows))
    slots = spare.slots[: rows * levels].reshape(levels, rows).tolist()
    whole = target.roll([segment], slots, RollOptions(2))
    gaps = np.sort(whole.behind[..., 1].ravel())
    certainty = Certainty(
        bounds=gaps[[len(gaps) // 3, 2 * len(gaps) // 3]],
        chances=np.array([[0.5, 0.7, 0.9], [0.6, 0.8, 1.0]] * (rows // 2), dtype=np.float32),
        least=[draw.choices([0.0, 0.3, 0.6, 1.1], k=draw.randrange(4)) for _ in range(rows)],
        tokens=[draw.randint(-2, 2) for _ in range(rows)],
        right=[draw.choice([1.0, 0.8]) for _ in range(rows)],
    )
    rolled = target.roll([segment], slots, RollOptions(2, certainty))
    deepest = 0
    for row, (least, tokens, chance) in enumerate(zip(*certainty[2:], strict=True)):
        end = levels
        for level in range(max(-tokens, 0), levels + 1):
            behind = whole.behind[level, row, 1]
            at = np.searchsorted(certainty.bounds, behind, "right")
            chance *= float(certainty.chances[row, at])
            if least and chance < least[min(tokens + level, len(least) - 1)]:
                end = level
                break
        assert np.array_equal(rolled.ids[: end + 1, row], whole.ids[: end + 1, row])
        assert np.array_equal(rolled.behind[: end + 1, row], whole.behind[: end + 1, row])
        assert (rolled.ids[end + 1 :, row] == -1).all()
        deepest = max(deepest, end)
    assert len(rolled.ids) == deepest + 1, "nothing is computed where nobody goes on"


def ends_with_texts(target: Runner, seed: int, levels: int = 6) -> None:
    """After so many tokens or one of their own stops, and the others go on as alone."""
    draw, rows = random.Random(seed), 5
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(rows * (levels + 1))
    segment = Segment([draw.randrange(99) for _ in range(rows)], 0, lease.slots, wanted=range(rows))
    slots = lease.slots[rows : rows * (levels + 1)].reshape(levels, rows)
    whole = target.roll([segment], slots, RollOptions(1)).ids[:, :, 0]
    limits = [
        Limit(
            draw.randint(1, levels + 2), draw.choices(whole[:, row].tolist(), k=draw.randrange(3))
        )
        for row in range(rows)
    ]
    rolled = target.roll([segment], slots, RollOptions(1, limits=limits)).ids[:, :, 0]
    lasted = []
    for row, limit in enumerate(limits):
        line = whole[: limit.tokens, row].tolist()
        stops = (at for at, token in enumerate(line) if token in limit.stops)
        count = next(stops, len(line) - 1) + 1
        assert rolled[:count, row].tolist() == line[:count]
        assert (rolled[count:, row] == -1).all()
        lasted.append(count)
    assert len(rolled) == max(lasted), "nothing is computed where nobody goes on"


def passes_beside_news(target: Runner, *, rung: bool) -> int:
    """Passes of a call that three fit into, where there is something to read, or is not."""
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(8)
    bell, cord = socket.socketpair()
    with bell, cord:
        if rung:
            cord.send(b"-")
        segment = Segment([5, 9], 0, lease.slots, wanted=[1])
        rolled = target.roll([segment], [[2], [3]], RollOptions(1, news=bell.fileno()))
    assert len(rolled.ids) == len(rolled.behind)
    return len(rolled.ids)
