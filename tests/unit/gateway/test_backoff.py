"""Pauses double up to a limit, by chance a share shorter, and begin again when told."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.backoff import Backoff


async def test_pauses_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(random, "uniform", lambda least, _: least)  # the shortest there are
    for jitter, share in ((0.5, 0.5), (0.0, 1.0), (1.0, 0.0)):
        backoff = Backoff(first_s=1.0, most_s=5.0, jitter=jitter)
        for _ in range(5):
            await backoff.pause()
        backoff.reset()
        await backoff.pause()
        assert slept == [share * pause for pause in (1.0, 2.0, 4.0, 5.0, 5.0, 1.0)]
        slept.clear()
