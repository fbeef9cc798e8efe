"""What two looks at a fleet say about its speed."""

from __future__ import annotations

from dataclasses import replace

from fleet.snapshot import State, Tier, tokens_per_s
from tests.unit.fleet.samples import identity, load, snapshot, worker


def test_speed_is_what_was_added_in_between() -> None:
    later = snapshot(
        workers=(
            worker("v1", load=load(tokens=1500)),
            worker("v2", load=load(tokens=1500), identity=identity(incarnation=2)),
            worker("d1", load=None),
            worker("d2"),
        ),
        at_s=12.0,
    )
    assert tokens_per_s(snapshot(), later) == {"v1": 250.0}, "others began anew, went or came"
    assert tokens_per_s(later, replace(later, at_s=12.0)) == {}


def test_shares() -> None:
    assert load().kv_use == 0.4
    assert load(kv_blocks_total=0, kv_blocks_free=0).kv_use == 0.0


def test_finding_workers() -> None:
    now = snapshot(workers=(worker("v1"), worker("d1", state=State.LOST)))
    assert [each.address for each in now.of(Tier.DRAFTER)] == ["d1"]
    assert now.of(Tier.DRAFTER, State.READY) == []
    assert now.worker("v9") is None
    assert [each.verifier for each in snapshot().pairs_of(worker("d1"))] == ["v1", "v2"]
