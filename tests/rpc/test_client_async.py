"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import paceline
import pytest
from paceline import errors
from paceline._conversion import CLASS_OF_CODE
from paceline._resume import Resumption

from tests.rpc.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.rpc.slow_link import slow_link

WAIT_S = 10


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: ScriptedGateway) -> AsyncIterator[paceline.AsyncClient]:
    async with paceline.AsyncClient(gateway.address) as client:
        yield client


async def happens(event: threading.Event) -> bool:
    return await asyncio.to_thread(event.wait, WAIT_S)


async def test_it_answers_as_the_sync_client_does(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    def sync() -> tuple[list[paceline.Chunk], paceline.Result]:
        with paceline.Client(gateway.address) as other:
            generation = other.generate("go")
            return list(generation), generation.result()

    generation = client.generate("go")
    chunks = [chunk async for chunk in generation]
    assert (chunks, await generation.result()) == await asyncio.to_thread(sync)


async def test_a_gateway_far_away_is_reached_at_the_first_try(gateway: ScriptedGateway) -> None:
    port = int(gateway.address.rpartition(":")[2])
    async with slow_link(port, 0.4) as address, paceline.AsyncClient(address) as client:
        assert (await client.generate("go").result()).text == "Once upon a time"


async def test_a_timeout_without_end_is_none(client: paceline.AsyncClient) -> None:
    assert (await client.generate("go", timeout=math.inf).result()).text == "Once upon a time"


async def test_the_other_calls(client: paceline.AsyncClient) -> None:
    assert [model.name for model in await client.models()] == ["tiny"]
    assert await client.tokenize("ab") == [97, 98]
    assert await client.detokenize([97, 98]) == "ab"


@pytest.mark.parametrize("code", CLASS_OF_CODE, ids=lambda code: code.name)
async def test_every_code_is_its_exception(
    client: paceline.AsyncClient, code: grpc.StatusCode
) -> None:
    with pytest.raises(CLASS_OF_CODE[code], match=f"told to fail with {code.name}") as stream:
        await client.generate(f"fail:{code.name}").result()
    assert isinstance(stream.value.__cause__, grpc.RpcError)
    with pytest.raises(CLASS_OF_CODE[code]):
        await client.tokenize(f"fail:{code.name}")


async def test_a_failed_generation_keeps_failing(client: paceline.AsyncClient) -> None:
    generation = client.generate("fail:NOT_FOUND")
    for _ in range(2):
        with pytest.raises(errors.NotFoundError):
            await generation.result()


async def test_a_stream_without_an_end_is_an_error(client: paceline.AsyncClient) -> None:
    with pytest.raises(errors.InternalError):
        await client.generate("cut").result()


async def test_what_came_whole_is_whole_though_its_end_was_lost(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    generation = client.generate("lost")
    for _ in range(2):
        assert (await generation.result()).text == "Once upon a time"
    assert len(gateway.requests) == 1


async def test_a_deadline_is_its_own_error(client: paceline.AsyncClient) -> None:
    with pytest.raises(errors.DeadlineExceededError):
        await client.generate("hang", timeout=0.3).result()


async def test_every_call_has_a_deadline(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    gateway.answering.clear()
    for call in (
        client.models(timeout=0.2),
        client.tokenize("ab", timeout=0.2),
        client.detokenize([97], timeout=0.2),
    ):
        with pytest.raises(errors.DeadlineExceededError, match="raise the timeout"):
            await call
    gateway.answering.set()


async def test_cancel_is_our_error_and_not_the_tasks(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    generation = client.generate("hang")
    reader = asyncio.create_task(generation.result())
    assert await happens(gateway.hanging)
    generation.cancel()
    with pytest.raises(errors.CancelledError):
        await reader
    assert await happens(gateway.cancelled)


async def test_cancelling_the_task_cancels_the_generation(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    reader = asyncio.create_task(client.generate("hang").result())
    assert await happens(gateway.hanging)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await happens(gateway.cancelled)


async def test_leaving_the_loop_cancels(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    generation = client.generate("hang")
    async for _ in generation:
        break
    assert await happens(gateway.cancelled)


async def test_dropping_a_generation_cancels(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    generation = client.generate("hang")
    assert await happens(gateway.hanging)
    del generation
    gc.collect()
    assert await happens(gateway.cancelled)


async def test_dropping_a_generation_in_another_thread_cancels_in_its_own(
    client: paceline.AsyncClient, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    held = [client.generate("hang")]
    kind = type(held[0]._call)
    cancel = kind.cancel

    def noted(call: Any) -> bool:
        threads.append(threading.current_thread())
        return bool(cancel(call))

    monkeypatch.setattr(kind, "cancel", noted)
    assert await happens(gateway.hanging)
    await asyncio.to_thread(held.clear)
    assert await happens(gateway.cancelled)
    assert set(threads) == {threading.current_thread()}


async def test_leaving_the_context_cancels(
    client: paceline.AsyncClient, gateway: ScriptedGateway
) -> None:
    async with client.generate("hang"):
        assert await happens(gateway.hanging)
    assert await happens(gateway.cancelled)


async def test_closing_the_client_cancels_what_runs(gateway: ScriptedGateway) -> None:
    async with paceline.AsyncClient(gateway.address) as client:
        generation = client.generate("hang")
        assert await happens(gateway.hanging)
    assert await happens(gateway.cancelled)
    with pytest.raises(errors.CancelledError):
        await generation.result()
    with pytest.raises(paceline.ClientClosedError):
        await client.models()


async def test_closing_the_client_is_our_error_and_not_the_tasks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = paceline.AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}")
        caller = asyncio.create_task(client.models())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(errors.CancelledError, match="by this client"):
            await caller


@pytest.mark.parametrize("closing", [True, False])
async def test_closing_or_cancelling_ends_the_pause_before_another_try(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    pausing = asyncio.Event()
    monkeypatch.setattr(Resumption, "pause_s", lambda *_: (pausing.set(), 600.0)[1])
    async with paceline.AsyncClient(gateway.address) as client, asyncio.timeout(10):
        generation = client.generate("fail:UNAVAILABLE")
        reader = asyncio.create_task(generation.result())
        await pausing.wait()
        if closing:
            await client.close()
        else:
            generation.cancel()
        with pytest.raises(errors.CancelledError, match="by this client"):
            await reader
    assert len(gateway.requests) == 1


def test_a_client_may_be_made_before_its_loop(gateway: ScriptedGateway) -> None:
    client = paceline.AsyncClient(gateway.address)

    async def use() -> str:
        async with client:
            return (await client.generate("go").result()).text

    assert asyncio.run(use()) == "Once upon a time"


async def test_closing_an_unused_client_is_fine() -> None:
    await paceline.AsyncClient("localhost:1").close()


def test_outside_an_event_loop_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="an AsyncClient needs a running event loop"):
        paceline.AsyncClient("localhost:1").generate("go")


async def test_in_a_second_event_loop_it_says_so(client: paceline.AsyncClient) -> None:
    await client.models()
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        await asyncio.to_thread(asyncio.run, client.models())
