"""Which choices are those of the pass, and which are not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from common.model.output import Computed, Output
from common.model.roll import Drawing
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from tests.inprocess import Pair
from tests.unit.verifier.texts import prompt_of
from verifier import scoring

GREEDY = Row(params=SamplingParams(), position=7)
DRAWN = Row(params=SamplingParams(temperature=1.0, seed=3), position=7)
BIASED = Row(params=SamplingParams(logit_bias={5: 40.0}), position=7)


@pytest.mark.parametrize("texts", list(itertools.product([GREEDY, DRAWN, BIASED], repeat=3)))
def test_every_row_has_its_own_choice(texts: tuple[Row, ...]) -> None:
    """Where texts of several kinds share a pass, each with the same row a few times."""
    rows = [row for row in texts for _ in range(4)]
    logits = torch.randn(len(rows), 30, generator=torch.Generator().manual_seed(1))
    expected = sample(logits, rows).tolist()
    chosen = [*expected[:5], -1, *expected[6:]]  # not sure of one
    assert scoring._choices(Computed(logits, logits, chosen), rows) == expected
    assert scoring._choices(Computed(logits, logits), rows) == expected


def test_choices_of_greedy_texts_are_those_the_pass_tells() -> None:
    output = Computed(torch.zeros(3, 9), torch.zeros(3, 1), [4, 5, 6])
    assert scoring._choices(output, [GREEDY] * 3) is output.chosen


@pytest.mark.parametrize("other", [DRAWN, BIASED])
def test_a_pass_is_told_how_to_choose_where_not_all_are_the_likeliest(other: Row) -> None:
    assert scoring._drawings([GREEDY, GREEDY]) == []
    told = scoring._drawings([GREEDY, other])
    assert [each.temperature for each in told] == [0.0, other.params.temperature]
    assert [each.adjusting is None for each in told] == [True, other is DRAWN]


@pytest.mark.parametrize("chooses", [True, False])
def test_only_a_model_that_chooses_in_passing_is_told_how(
    chooses: bool, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices are the same."""
    expected = Pair.make(target).generate(prompt_of(10), 4, sampling=DRAWN.params)
    forward, told = target.forward, []

    def telling(segments: list[Segment], drawings: Sequence[Drawing], **options: bool) -> Output:
        told.append(len(drawings))
        output = forward(segments, drawings, **options)
        return output if chooses else Computed(output.logits, output.states)

    monkeypatch.setattr(target, "forward", telling)
    monkeypatch.setattr(Runner, "chooses", chooses)
    monkeypatch.setattr(Runner, "rolls", False)
    assert Pair.make(target).generate(prompt_of(10), 4, sampling=DRAWN.params) == expected
    assert told == [int(chooses)] * 4
