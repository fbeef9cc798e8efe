"""The fleet at one moment: who is offered whom, found out in one go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.candidate import Candidate
from gateway.gain import Gains
from gateway.placement import place
from gateway.snapshot import pairs
from tests.unit.gateway.candidates import drafter, measured, verifier


def followed(*workers: Candidate) -> Any:
    """Workers as those that follow them know them."""
    return {each.address: SimpleNamespace(candidate=each, status=None) for each in workers}


def fleet(verifiers: int, drafters: int) -> tuple[list[Candidate], list[Candidate]]:
    """Two models' verifiers, and drafters that all of them have tried."""
    names = [f"d{n}" for n in range(drafters)]
    tried = {name: measured(1.5 + n / 10) for n, name in enumerate(names)}
    found = [verifier(f"v{n}", model="mn"[n % 2], pairs=tried) for n in range(verifiers)]
    return found, [drafter(name, running=3, step_ms=2 + n) for n, name in enumerate(names)]


def test_pairs_tell_who_is_offered_whom() -> None:
    verifiers, drafters = fleet(4, 3)
    told = list(pairs(followed(*verifiers), followed(*drafters)))
    assert [(pair.verifier, pair.drafter) for pair in told] == [
        (f"v{v}", f"d{d}") for v in range(4) for d in range(3)
    ]
    for one in verifiers:
        kin = [each for each in verifiers if each.description.model == one.description.model]
        placed = place("auto", kin, drafters, owner=one.address)
        offered = {pair.drafter for pair in told if pair.verifier == one.address and pair.offered}
        assert (placed.verifier, set(placed.drafters)) == (one.address, offered)


def test_a_look_at_all_pairs_judges_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken every second, by a process that has requests to serve."""
    judged = []
    model = Gains.model

    def noted(self: Gains, one: Candidate, other: Candidate) -> Any:
        judged.append((one.address, other.address))
        return model(self, one, other)

    monkeypatch.setattr(Gains, "model", noted)
    verifiers, drafters = fleet(12, 10)
    assert len(list(pairs(followed(*verifiers), followed(*drafters)))) == 120
    assert len(judged) <= 2 * 120
