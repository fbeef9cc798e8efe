"""The bench's probe of a drafter speaks to a real one."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bench.drafter_probe import probe
from common.errors import StartupError
from common.model.runner import Runner
from tests.rpc.services import Way, drafting

PROMPT = [5, 17, 23, 40, 8, 90, 61]


@pytest.mark.parametrize("way", ["grpc", "far"])
async def test_an_idle_drafter_says_how_fast_it_answers(twin: Runner, way: Way) -> None:
    async with drafting(twin, way=way) as drafter:
        found = await asyncio.to_thread(probe, drafter.address, PROMPT)
        await drafter.empty()
    assert 0 <= found.token_s < 10
    assert 0 <= found.way_s < 10


async def test_one_that_gives_the_session_up_is_an_error(twin: Runner) -> None:
    async with drafting(twin) as drafter:
        with pytest.raises(StartupError, match="do not fit"):
            await asyncio.to_thread(probe, drafter.address, [1 << 20])


async def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(StartupError, match="does not answer"):
        await asyncio.to_thread(probe, address, PROMPT)
