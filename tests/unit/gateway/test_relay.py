"""How much of a request's time a verifier is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import DeadlineExceeded
from gateway.breaker import Breaker
from gateway.relay import relay
from tests.unit.gateway.test_tally import ORDER


class Asked(Exception):
    """Ends the call where it would go out."""


async def given(timeout_s: float) -> float:
    def generate(request: Any, *, timeout: float, metadata: Any) -> None:
        raise Asked(timeout)

    stub = SimpleNamespace(Generate=generate)
    worker: Any = SimpleNamespace(address="v:1", stub=stub, breaker=Breaker())
    with pytest.raises(Asked) as caught:
        await anext(relay(worker, ORDER, timeout_s))
    return caught.value.args[0]


async def test_a_verifier_ends_before_the_client_and_has_most_of_a_short_time() -> None:
    assert await given(10.0) == pytest.approx(9.95)
    assert await given(0.04) == pytest.approx(0.03)
    with pytest.raises(DeadlineExceeded):
        await given(0.0)
