"""Time by hand, for what drafters are waited for, and none for what a head takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import inprocess
from tests.unit.verifier.methods.draft_table import Clock
from verifier.drafting import news
from verifier.methods import draft, head_drafts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (draft, news, inprocess):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of a head take no time, so that they go as far as can be."""
    monkeypatch.setattr(head_drafts, "time", SimpleNamespace(perf_counter=lambda: 0.0))
