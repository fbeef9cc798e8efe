"""Branches off the wire: the one that is wanted is checked, and it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paceline.v1 import drafter_pb2

from common.model.distribution import Listed
from common.model.tree import Drawn
from drafter.branch import Round
from drafter.convert import response
from drafter.item import sent
from drafter.reply import Reply
from verifier.branches import Received
from verifier.drafting.link import Branch

VOCAB = 50


def _received(**fields: Any) -> Received:
    message = drafter_pb2.Branches(session=3, incarnation=2, base=7, path_hash=11)
    message.branches.add(accepted=0, bonus=4, ids=[VOCAB])  # senseless, and never wanted
    message.branches.add(**{"accepted": 1, "bonus": 5, "ids": [8, 9]} | fields)
    return Received(message, VOCAB, 1.5)


def test_the_branch_of_an_outcome_is_found() -> None:
    wave = _received()
    assert (wave.session, wave.incarnation, wave.base, wave.path_hash) == (3, 2, 7, 11)
    assert wave.came_at == 1.5
    assert wave.find(1, 5) == Branch((8, 9))
    assert wave.find(1, 4) is None
    assert wave.find(0, 5) is None


def test_of_a_wave_without_end_little_is_looked_at() -> None:
    message = drafter_pb2.Branches(base=7)
    for bonus in range(1000):
        message.branches.add(accepted=0, bonus=bonus, ids=[8])
    wave = Received(message, VOCAB, 1.5)
    assert wave.find(0, 3) == Branch((8,))
    assert wave.find(0, 999) is None


def test_what_ids_were_drawn_from_comes_with_them() -> None:
    drawn = drafter_pb2.Drawn(ids=[8, 2], probabilities=[0.75, 0.25])
    assert _received(ids=[8], drawn=[drawn]).find(1, 5) == Branch(
        (8,), (Drawn((8, 2), (0.75, 0.25)),)
    )


def test_what_a_drafter_sends_is_a_distribution_whatever_floats_of_a_message_hold() -> None:
    chances = [0.25, 1e-320, 1e-60, 1e-42, 0.75, 2e-38]
    drawn = sent(Listed(np.arange(6), np.array(chances)))
    assert drawn == Drawn((0, 4, 5), (0.25, 0.75, 2e-38))
    outcome = Round(base=7, path_hash=11, accepted=1, ids=(8, 5), draft_tokens=1)
    reply = Reply(session=3, incarnation=2, round=outcome, ids=(4,), drawn=(drawn,))
    message = drafter_pb2.DraftResponse.FromString(response([reply]).SerializeToString())
    branch = Received(message.branches[0], VOCAB, 1.5).find(1, 5)
    assert branch is not None
    assert branch.drawn[0].ids == drawn.ids
    assert branch.drawn[0].probabilities == pytest.approx(drawn.probabilities, rel=1e-7)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"offset": 1}, "continues one that never came"),
        ({"ids": [8, VOCAB]}, "does not know its ids"),
        ({"drawn": [drafter_pb2.Drawn(ids=[8], probabilities=[1.0])]}, "not drawn from"),
        (
            {"ids": [8], "drawn": [drafter_pb2.Drawn(ids=[2], probabilities=[1.0])]},
            "not drawn from",
        ),
        (
            {"ids": [8], "drawn": [drafter_pb2.Drawn(ids=[8, 2], probabilities=[0.5, 0.4])]},
            "not drawn from",
        ),
        (
            {"ids": [8], "drawn": [drafter_pb2.Drawn(ids=[8, 2], probabilities=[1.5, -0.5])]},
            "not drawn from",
        ),
        (
            {"ids": [8], "drawn": [drafter_pb2.Drawn(ids=[8, 8], probabilities=[0.5, 0.5])]},
            "not drawn from",
        ),
        (
            {"ids": [8], "drawn": [drafter_pb2.Drawn(ids=[8, VOCAB], probabilities=[0.5, 0.5])]},
            "not drawn from",
        ),
    ],
)
def test_one_that_makes_no_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _received(**fields).find(1, 5)
