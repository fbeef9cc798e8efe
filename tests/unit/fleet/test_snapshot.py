"""What two looks at a fleet say about its speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fleet.snapshot import State, Tier, tokens_per_s
from tests.unit.fleet.samples import identity, load, pair, snapshot, worker


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


def test_however_many_there_are_they_are_gone_through_once() -> None:
    class Counted(tuple[Any, ...]):
        times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1
            return super().__iter__()

    verifiers, drafters = ("v1", "v2", "v3"), ("d1", "d2")
    workers = Counted(worker(address) for address in (*verifiers, *drafters))
    pairs = Counted(pair(verifier, drafter) for verifier in verifiers for drafter in drafters)
    now = snapshot(workers=workers, pairs=pairs)
    found = [now.worker(address) for address in (*verifiers, *drafters)]
    assert [len(now.pairs_of(each)) for each in found if each] == [2, 2, 2, 3, 3]
    assert (workers.times, pairs.times) == (1, 1)
