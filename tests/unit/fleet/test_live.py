"""The fleet as `paceline fleet status --json` tells it."""

from __future__ import annotations

from fleet.live import data
from tests.unit.fleet.samples import identity, snapshot, worker


def test_an_incarnation_is_told_in_digits() -> None:
    """Many readers of JSON keep 53 bits of a number; it has 64."""
    started = worker("v1", identity=identity(incarnation=2**64 - 1))
    never_reached = worker("v2", identity=None)
    told = data(snapshot(workers=(started, never_reached)), {})["workers"]
    assert told[0]["identity"]["incarnation"] == "18446744073709551615"
    assert told[1]["identity"] is None
