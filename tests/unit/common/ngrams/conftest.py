"""Fixtures of both implementations."""

from __future__ import annotations

import pytest

from tests.unit.common.ngrams.kinds import IN_PYTHON, Kinds, compiled


@pytest.fixture(params=["compiled", "in Python"])
def kinds(request: pytest.FixtureRequest) -> Kinds:
    """Each implementation in turn."""
    return compiled() if request.param == "compiled" else IN_PYTHON


@pytest.fixture
def native() -> Kinds:
    """The compiled one."""
    return compiled()
