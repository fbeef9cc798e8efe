"""Compiled heads that draft in one call: what they guess depth by depth, and as far."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import pytest
import torch

from common.model.drafting_head import MOST_DEPTH, MOST_DRAFTED, Going, Guessed
from common.model.eagle.compiled import NativeEagle
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import Behind
from common.model.native import instructions
from common.model.roll import Drawing
from common.model.row import Row
from common.model.seen import seen
from common.sampling_params import SamplingParams
from tests.unit.common.model.eagle import drafting
from tests.unit.common.model.eagle.going import roll
from tests.unit.common.model.eagle.plain import EMBEDDINGS, POSITIONS, Step, Text, plainly
from tests.unit.common.model.eagle.small_heads import VOCAB

pytestmark = [
    pytest.mark.skipif(not instructions(torch.float32), reason="no compiled code here"),
    pytest.mark.usefixtures("vectors"),
]


def _head(
    weights: EagleWeights, threads: int = 1, dtype: torch.dtype = torch.float32
) -> NativeEagle:
    return NativeEagle(
        weights,
        embeddings=EMBEDDINGS.to(dtype),
        cache=drafting.cache(weights).to(dtype),
        positions=POSITIONS,
        threads=threads,
    )


def _shown(texts: Seq[Text]) -> list[Behind]:
    return [text.rows(0, len(text.tokens)) for text in texts]


def _known(levels: Seq[Guessed]) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """Ids and chances of what there is, by depth and text."""
    return {
        (depth, text): ([token for token in ids if token >= 0], [*chances])
        for depth, level in enumerate(levels)
        for text, (ids, chances) in enumerate(zip(*level, strict=True))
        if ids[0] >= 0
    }


def _check(found: Seq[Guessed], wanted: Seq[Guessed]) -> None:
    one, other = _known(found), _known(wanted)
    assert len(found) == len(wanted)
    assert one.keys() == other.keys()
    for where, (ids, chances) in other.items():
        assert one[where][0] == ids, where
        assert one[where][1][: len(ids)] == pytest.approx(chances, rel=1e-3, abs=1e-6), where


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["", "own every bias", "normed", "own normed"])
@pytest.mark.parametrize("seed", range(8))
def test_guesses_are_those_of_single_depths(kind: str, seed: int, dtype: torch.dtype) -> None:
    """Of texts that end at different depths, drawn or not, until another depth does not pay."""
    draw = random.Random(seed)
    texts = drafting.texts([draw.randint(1, 12) for _ in range(draw.randint(1, 5))], seed)
    depths = draw.randint(1, 8)
    drawings = [_row(draw, text.tokens).drawing for text in texts if seed % 2]
    going = Going(
        draw.randint(2, 5),
        [[draw.uniform(0.5, 8) for _ in range(depths)] for _ in texts],
        [draw.randint(0, 9) for _ in texts],
        draw.choice([0.0, 0.1]),
        [draw.uniform(0, 0.2) for _ in range(depths)],
        [draw.uniform(0, 0.1) for _ in range(depths)],
        drawings,
    )
    head = _head(drafting.weights(kind), 1 + seed % 3, dtype)
    _check(head.roll(_shown(texts), going), roll(head, _shown(texts), going))


def _row(draw: random.Random, ids: Seq[int]) -> Row:
    """How a guess behind some ids is made: in any way there is."""
    biases = {draw.randrange(VOCAB): draw.uniform(-9, 9) for _ in range(draw.choice([0, 4]))}
    params = SamplingParams(
        seed=draw.randrange(1 << 40),
        top_k=draw.choice([0, 6]),
        temperature=draw.choice([0.0, 0.5, 1.3]),
        top_p=draw.choice([0.8, 1.0]),
        min_p=draw.choice([0.0, 0.02]),
        repetition_penalty=draw.choice([1.0, 0.5, 3.0]),
        logit_bias=biases,
    )
    return Row(params, len(ids) + 1, seen(ids, VOCAB, torch.device("cpu")))


def _on(texts: int, depths: int = MOST_DEPTH, **changes: object) -> Going:
    """Going on as far as there may be, whatever it is worth."""
    free = [0.0] * depths
    every = Going(1, [[1.0] * depths] * texts, [depths] * texts, 0.0, free, free)
    return every._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["", "own every bias", "normed"])
def test_the_likeliest_guesses_are_those_of_the_formula(kind: str) -> None:
    """As many behind each other as there may be."""
    weights, texts = drafting.weights(kind), drafting.texts([9, 1, 17])
    found = _head(weights, threads=2).roll(_shown(texts), _on(3))
    steps: list[Step] = [([0, 1, 2], [token for (token,) in ids]) for ids, _ in found[:-1]]
    ids = torch.arange(VOCAB) if weights.ids is None else weights.ids
    for level, logits in zip(found, plainly(weights, texts, steps, [()] * 3), strict=True):
        chances, places = logits.softmax(-1).max(-1)
        assert [token for (token,) in level[0]] == ids[places].tolist()
        assert [said for (said,) in level[1]] == pytest.approx(chances.tolist(), rel=1e-3)


def test_the_longest_text_has_the_deepest_draft() -> None:
    head, texts = _head(drafting.weights("every")), _shown(drafting.texts([POSITIONS - 1]))
    found = head.roll(texts, _on(1))
    assert len(found) == MOST_DEPTH
    _check(found, roll(head, texts, _on(1)))


def test_nothing_is_drafted_beyond_the_room_that_there_is() -> None:
    """As many texts as would need more rows than the cache has aside."""
    many = MOST_DRAFTED // 2 + 1
    found = _head(drafting.weights()).roll(_shown(drafting.texts([1])) * many, _on(many))
    assert len(_known(found)) == 2 * many


def test_only_as_many_tokens_are_told_of_as_can_be_guessed() -> None:
    found = _known(_head(drafting.weights()).roll(_shown(drafting.texts([3])), _on(1, ranks=64)))
    guessable = drafting.weights().ids
    assert guessable is not None
    assert all(sorted(ids) == guessable.tolist() for ids, _ in found.values())


def test_a_draw_that_nobody_is_sure_of_ends_a_text_alone() -> None:
    """Nearly equal scores could be in another order elsewhere: the other text goes on."""
    weights = drafting.weights("every")
    weights.lm_head[:] = weights.lm_head[0]
    unsure = Drawing(seed=1, position=3, top_k=0, temperature=1e-30, top_p=0.5, min_p=0.0)
    plain = Drawing(seed=1, position=3, top_k=0, temperature=0.0, top_p=1.0, min_p=0.0)
    texts, going = _shown(drafting.texts([3, 3])), _on(2, ranks=2, drawings=[unsure, plain])
    found = _known(_head(weights).roll(texts, going))
    assert {text for _, text in found} == {1}
    assert len(found) == MOST_DEPTH


def test_chances_are_numbers_whatever_a_bias_and_a_penalty_make_of_logits() -> None:
    """What is learnt of one text's guesses is believed of those of all."""
    biased = SamplingParams(logit_bias={3: 1e300, 9: 1e300})
    penalised = SamplingParams(repetition_penalty=1e-300)
    mask = torch.ones(VOCAB, dtype=torch.bool)
    drawings = [Row(params, 3, mask).drawing for params in (biased, penalised)]
    texts, going = _shown(drafting.texts([3, 3])), _on(2, ranks=3, drawings=drawings)
    found = _head(drafting.weights("every")).roll(texts, going)
    assert len(found) == MOST_DEPTH
    for ids, chances in found:
        assert (ids[0][:2], chances[0]) == ([3, 9], [0.5, 0.5, 0.0])
        assert all(0 <= said <= 1 for said in chances[1])


def test_ids_out_of_range_are_refused() -> None:
    (text,) = drafting.texts([5])
    wrong = text._replace(tokens=[*text.tokens[:4], -1])
    with pytest.raises(IndexError):
        _head(drafting.weights()).roll(_shown([wrong]), _on(1))
