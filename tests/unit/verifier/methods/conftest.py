"""Time by hand, for what drafters are waited for."""

from __future__ import annotations

import pytest

from tests.unit.verifier.methods.draft_table import Clock
from verifier.drafting import news
from verifier.methods import draft


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (draft, news):
        monkeypatch.setattr(module, "time", clock)
    return clock
