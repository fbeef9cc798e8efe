"""EAGLE-3 heads that draft: through torch and in compiled code they make what a plain one does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.model.drafting_head import MOST_DEPTH, MOST_DRAFTED, Draft
from common.model.eagle.compiled import NativeEagle
from common.model.eagle.through_torch import TorchHead
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import KeyedHead
from common.model.kv_cache import ZERO_SLOT
from common.model.native import instructions
from tests.unit.common.model.eagle import drafting
from tests.unit.common.model.eagle.plain import EMBEDDINGS, POSITIONS, Step, plainly
from tests.unit.common.model.eagle.small_heads import VOCAB

KINDS = ["torch", "native", "native-threads"]
compiled = pytest.mark.skipif(not instructions(torch.float32), reason="no compiled code here")


def _head(weights: EagleWeights, how: str = "torch", cache: Tensor | None = None) -> KeyedHead:
    """A head that computes in the type of the cache."""
    cache = drafting.cache(weights) if cache is None else cache
    common: dict[str, Any] = {
        "embeddings": EMBEDDINGS.to(cache.dtype),
        "cache": cache,
        "positions": POSITIONS,
    }
    if how == "torch":
        return TorchHead(weights, dtype=cache.dtype, **common)
    return NativeEagle(weights, threads=2 if how == "native-threads" else 1, **common)


def _steps(draw: random.Random, texts: int, depths: int) -> list[Step]:
    steps, rows = [], texts
    for _ in range(depths):
        parents = sorted(draw.choices(range(rows), k=draw.randint(1, 2 * texts)))
        steps.append((parents, [draw.randrange(VOCAB) for _ in parents]))
        rows = len(parents)
    return steps


def _drafted(draft: Draft, steps: Seq[Step]) -> list[Tensor]:
    """Logits of all depths."""
    return [draft.logits.clone(), *(draft.further(*step).clone() for step in steps)]


def _check(found: Seq[Tensor], wanted: Seq[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


def _kinds(*heads: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "how", [pytest.param(how, marks=[compiled] if how != "torch" else []) for how in heads]
    )


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds any head, so that threads take parts of a batch."""
    monkeypatch.setattr("common.model.native.library._shared_cache", lambda: 1 << 30)


@_kinds(*KINDS)
@pytest.mark.parametrize("kind", ["", "own every", "bias", "own bias", "normed", "own normed bias"])
def test_guesses_are_those_of_the_formula(how: str, kind: str) -> None:
    """Behind texts of different lengths, over parents that branch and some that end."""
    weights = drafting.weights(kind)
    texts, steps = drafting.texts([9, 1, 17, 4]), _steps(random.Random(1), 4, 5)
    head = _head(weights, how)
    found = _drafted(head.draft([text.rows(0, len(text.tokens)) for text in texts]), steps)
    _check(found, plainly(weights, texts, steps, [()] * 4))


@_kinds(*KINDS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_rows_may_come_in_pieces_and_leave_holes(how: str, seed: int) -> None:
    """In any pieces of any texts, the last of which is drafted behind; keys that were never shown
    count as zeros, whatever the cache has there."""
    draw = random.Random(seed)
    weights = drafting.weights(draw.choice(["", "bias", "own", "own every bias"]))
    lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 4))]
    texts, steps = drafting.texts(lengths, seed), _steps(draw, len(lengths), draw.randint(0, 6))
    head = _head(weights, how, drafting.cache(weights, 7.0))
    holes: list[list[int]] = []
    last = []
    for text, length in zip(texts, lengths, strict=True):
        cuts = sorted({0, length, *(draw.randrange(length) for _ in range(3))})
        pieces = list(itertools.pairwise(cuts))
        skipped = [piece for piece in pieces[:-1] if draw.random() < 0.3]
        holes.append([at for piece in skipped for at in range(*piece)])
        for piece in pieces[:-1]:
            if piece not in skipped:
                head.write([text.rows(*piece)])
        last.append(text.rows(*pieces[-1], holes=holes[-1]))
    wanted = plainly(weights, texts, steps, holes, absent=how == "torch")
    _check(_drafted(head.draft(last), steps), wanted)


@_kinds(*KINDS)
def test_texts_in_groups_are_guessed_as_together(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory does not hold the keys of all."""
    weights, texts = drafting.weights(), drafting.texts([9, 1, 17, 4, 9])
    rows = [text.rows(0, len(text.tokens)) for text in texts]
    head = _head(weights, how)
    assert sorted(*head.groups(rows)) == [0, 1, 2, 3, 4]
    row_bytes = 2 * weights.kv_heads * weights.head_size * 4
    monkeypatch.setattr("common.model.gathered.MOST_BYTES", 18 * row_bytes)
    groups = head.groups(rows)
    assert groups == ([[1, 3], [0, 4], [2]] if how == "torch" else [[0, 1, 2, 3, 4]])
    for group in groups:
        steps = _steps(random.Random(5), len(group), 4)
        of = [texts[text] for text in group]
        found = _drafted(head.draft([rows[text] for text in group]), steps)
        _check(found, plainly(weights, of, steps, [()] * len(group)))


@_kinds(*KINDS)
def test_texts_may_end_and_branch_at_any_depth(how: str) -> None:
    """Until one is left, and it has several rows."""
    weights, texts = drafting.weights(), drafting.texts([5, 12, 3, 9, 1])
    steps: list[Step] = [
        ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5]),
        ([0, 0, 1, 3, 4, 4], [6, 7, 8, 9, 10, 11]),
        ([2, 3, 3], [12, 13, 14]),
        ([0, 1], [15, 16]),
        ([1], [17]),
        ([0, 0, 0], [18, 19, 20]),
    ]
    rows = [text.rows(0, len(text.tokens)) for text in texts]
    found = _drafted(_head(weights, how).draft(rows), steps)
    _check(found, plainly(weights, texts, steps, [()] * 5))


@_kinds(*KINDS)
def test_only_slots_of_rows_that_were_shown_and_spare_ones_change(how: str) -> None:
    weights, texts = drafting.weights(), drafting.texts([6, 11])
    cache = drafting.cache(weights, 7.0)
    head = _head(weights, how, cache)
    head.write([texts[1].rows(0, 8)])
    before = cache.clone()
    draft = head.draft([texts[0].rows(0, 6), texts[1].rows(8, 11)])
    _drafted(draft, _steps(random.Random(2), 2, 6))
    shown = {*texts[0].slots[:6], *texts[1].slots[8:11]}
    changed = (cache != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert {slot for slot in changed if slot < drafting.SLOTS} == shown
    assert not cache[ZERO_SLOT].any()


@_kinds(*KINDS)
def test_a_prefix_that_another_text_wrote_serves(how: str) -> None:
    """Its keys lie where the texts' blocks are, which both have."""
    weights, (text, other) = drafting.weights(), drafting.texts([12, 12])
    shared = other._replace(slots=np.concatenate((text.slots[:8], other.slots[8:])))
    states = torch.cat((text.states[:8], other.states[8:]))
    shared = shared._replace(states=states, tokens=[*text.tokens[:8], *other.tokens[8:]])
    head = _head(weights, how)
    head.write([text.rows(0, 12)])
    steps = _steps(random.Random(3), 1, 4)
    found = _drafted(head.draft([shared.rows(8, 12)]), steps)
    _check(found, plainly(weights, [shared], steps, [()]))


@compiled
@pytest.mark.parametrize("how", ["native", "native-threads"])
@pytest.mark.parametrize("kind", ["", "own every bias"])
@pytest.mark.skipif(not instructions(torch.bfloat16), reason="no compiled code for it here")
def test_compiled_heads_of_8_bits_guess_about_the_same(how: str, kind: str) -> None:
    weights = drafting.weights(kind)
    texts, steps = drafting.texts([9, 3, 14]), _steps(random.Random(4), 3, 4)
    rows = [text.rows(0, len(text.tokens)) for text in texts]
    head = _head(weights, how, drafting.cache(weights).bfloat16())
    found = _drafted(head.draft(rows), steps)
    for one, other in zip(found, plainly(weights, texts, steps, [()] * 3), strict=True):
        assert one.dtype == torch.float32
        off = (one - other).square().mean(-1).sqrt() / other.std(-1)
        assert float(off.max()) < 0.15


@pytest.mark.parametrize("kind", ["", "own every bias", "normed"])
def test_heads_in_bfloat16_guess_about_the_same(kind: str) -> None:
    weights = drafting.weights(kind)
    texts, steps = drafting.texts([9, 3, 14]), _steps(random.Random(4), 3, 4)
    rows = [text.rows(0, len(text.tokens)) for text in texts]
    head = _head(weights, "torch", drafting.cache(weights).bfloat16())
    found = _drafted(head.draft(rows), steps)
    for one, other in zip(found, plainly(weights, texts, steps, [()] * 3), strict=True):
        off = (one - other).square().mean(-1).sqrt() / other.std(-1)
        assert float(off.max()) < 0.1


@compiled
def test_parts_of_a_batch_that_threads_take_have_the_bits_of_the_whole() -> None:
    """Each text's rows, what they begin with, and what they end with."""
    weights, texts = drafting.weights(), drafting.texts([8, 8, 8, 8])
    rows = [text.rows(0, 8) for text in texts]
    steps = [([row for row in range(4) for _ in range(4)], list(range(16)))]
    steps += [(list(range(16)), list(range(16, 32)))] * 3
    one, two = (_drafted(_head(weights, how).draft(rows), steps) for how in KINDS[1:])
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))


@_kinds(*KINDS)
@pytest.mark.parametrize("token", [-1, VOCAB])
def test_ids_out_of_range_are_refused(how: str, token: int) -> None:
    """Shown or guessed."""
    head, (text,) = _head(drafting.weights(), how), drafting.texts([5])
    wrong = text._replace(tokens=[*text.tokens[:3], token, 7])
    for ask in (head.write, head.draft):
        with pytest.raises(IndexError):
            ask([wrong.rows(0, 5)])
    draft = head.draft([text.rows(0, 5)])
    with pytest.raises(IndexError):
        draft.further([0], [token])


@compiled
def test_rows_past_the_longest_text_are_refused() -> None:
    head, (text,) = (
        _head(drafting.weights(), "native"),
        drafting.texts([POSITIONS + MOST_DEPTH + 1]),
    )
    with pytest.raises(IndexError):
        head.write([text.rows(0, len(text.tokens))])
    with pytest.raises(IndexError, match="5 positions, 4 with a slot"):
        head.write([text.rows(0, 5)._replace(slots=text.slots[:4])])


@_kinds("torch", "native")
def test_the_longest_text_has_the_deepest_draft(how: str) -> None:
    weights, (text,) = drafting.weights(), drafting.texts([POSITIONS - 1])
    steps: list[Step] = [([0], [3])] * (MOST_DEPTH - 1)
    found = _drafted(_head(weights, how).draft([text.rows(0, POSITIONS - 1)]), steps)
    _check(found, plainly(weights, [text], steps, [()]))


@compiled
def test_there_is_room_for_as_many_drafted_rows_as_are_promised() -> None:
    head, texts = _head(drafting.weights(), "native"), drafting.texts([2, 2])
    draft, rows = head.draft([text.rows(0, 2) for text in texts]), 64
    parents = [row * 2 // rows for row in range(rows)]
    for _ in range(MOST_DRAFTED // rows):
        draft.further(parents, [5] * rows)
        parents = list(range(rows))
    with pytest.raises(AssertionError, match="more drafted rows than there is room for"):
        draft.further([0], [5])


@_kinds(*KINDS)
def test_a_few_tokens_that_can_be_guessed_are_found_among_all(how: str) -> None:
    weights, (text,) = drafting.weights(), drafting.texts([5])
    head = _head(weights, how)
    logits = head.draft([text.rows(0, 5)]).logits
    assert weights.ids is not None
    every = head.spread(logits)
    assert every.shape == (1, VOCAB)
    assert torch.equal(every[:, weights.ids], logits)
    others = [token for token in range(VOCAB) if token not in weights.ids.tolist()]
    assert torch.all(every[:, others] == -torch.inf)
    assert torch.equal(head.narrow(every), logits)
    (ids,), (chances,) = head.top(logits, 3)
    wanted = every.softmax(-1).topk(3)
    assert ids == wanted.indices[0].tolist()
    assert chances == pytest.approx(wanted.values[0].tolist(), rel=1e-3)
    (most,), _ = head.top(logits, 2 * VOCAB)
    assert sorted(most) == weights.ids.tolist(), "no more than it can guess"


def test_all_tokens_can_be_guessed_without_a_list() -> None:
    head, logits = _head(drafting.weights("every")), torch.randn(2, VOCAB)
    assert head.spread(logits) is head.narrow(logits) is logits


def test_compiled_heads_know_what_they_cannot_run() -> None:
    for kind in ("", "own normed every bias"):
        assert NativeEagle.can_run(drafting.weights(kind), torch.float32) == bool(
            instructions(torch.float32)
        )
    assert not NativeEagle.can_run(drafting.weights(), torch.float16)
