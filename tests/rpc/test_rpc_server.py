"""The server helper: errors both ways, health, drain, ports, keepalive."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, worker_pb2, worker_pb2_grpc

from common import errors
from common.address import check_port
from common.rpc import channel, server
from common.rpc.errors import from_rpc_error
from common.rpc.health import Health
from tests.ipv6 import needs_ipv6
from tests.rpc.slow_link import slow_link
from tests.waiting import until

SERVICE = "paceline.v1.Worker"


class Scripted(worker_pb2_grpc.WorkerServicer):
    """Raises what it is told to; streams until it is told to stop."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.release = asyncio.Event()

    async def Describe(self, request, context):
        if self.error:
            raise self.error
        return worker_pb2.DescribeResponse(model="m")

    async def WatchStatus(self, request, context):
        yield worker_pb2.WatchStatusResponse(running=1)
        if self.error:
            raise self.error
        await self.release.wait()
        yield worker_pb2.WatchStatusResponse(running=2)

    def register(self, target: grpc.aio.Server) -> list[str]:
        worker_pb2_grpc.add_WorkerServicer_to_server(self, target)
        return [SERVICE]


@asynccontextmanager
async def running(servicer: Scripted, **options) -> AsyncIterator[SimpleNamespace]:
    started = await server.start(register=servicer.register, host="127.0.0.1", port=0, **options)
    try:
        async with channel.open_channel(f"127.0.0.1:{started.port}") as opened:
            yield SimpleNamespace(
                server=started,
                worker=worker_pb2_grpc.WorkerStub(opened),
                health=health_pb2_grpc.HealthStub(opened),
            )
    finally:
        await started.stop()


EVERY_ERROR = [
    errors.InvalidArgument("sampling.top_p", "must be in (0, 1], got 1.5"),
    errors.NotFound("no such model"),
    errors.FailedPrecondition("not here"),
    errors.ResourceExhausted("full"),
    errors.Unavailable("down"),
    errors.DeadlineExceeded("late"),
    errors.Cancelled("gone"),
    errors.PacelineError("broken invariant"),
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
async def test_errors_map_both_ways(error: errors.PacelineError) -> None:
    async with running(Scripted(error)) as target:
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await target.worker.Describe(worker_pb2.DescribeRequest())
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            async for _ in target.worker.WatchStatus(worker_pb2.WatchStatusRequest()):
                pass
    for caught in (unary.value, stream.value):
        assert caught.code() is grpc.StatusCode[error.code]
        again = from_rpc_error(caught)
        assert type(again) is type(error)
        assert str(again) == str(error)


@pytest.mark.parametrize("text", ["x" * 100_000, "語" * 100_000, "\n" * 100_000])
async def test_a_long_message_is_cut_and_keeps_its_code(text: str) -> None:
    async with running(Scripted(errors.NotFound(f"no model {text}"))) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.worker.Describe(worker_pb2.DescribeRequest())
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        told = caught.value.details() or ""
        assert len(told) >= 600
        assert f"no model {text}".startswith(told.removesuffix(" …"))


async def test_the_unexpected_is_internal_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Scripted(RuntimeError("secret prompt"))) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.worker.Describe(worker_pb2.DescribeRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"
    assert [record.message for record in caplog.records] == ["handler failed"]


def test_unavailable_names_the_peer_and_a_nameless_field_survives() -> None:
    def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    lost = from_rpc_error(failed(grpc.StatusCode.UNAVAILABLE, "refused"), peer="verifier h:1")
    assert str(lost) == "verifier h:1: refused"
    reset = "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"
    behind_a_proxy = from_rpc_error(failed(grpc.StatusCode.INTERNAL, reset), peer="verifier h:1")
    assert isinstance(behind_a_proxy, errors.Unavailable)
    assert str(behind_a_proxy) == f"verifier h:1: {reset}"
    nameless = from_rpc_error(failed(grpc.StatusCode.INVALID_ARGUMENT, "bad request"))
    assert isinstance(nameless, errors.InvalidArgument)
    assert str(nameless) == "bad request"


async def test_health_and_a_port_in_use() -> None:
    async with running(Scripted()) as target:
        for name in ("", SERVICE):
            answer = await target.health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        port = target.server.port
        with pytest.raises(
            errors.StartupError, match=f"port {port} on 127.0.0.1 is already in use"
        ):
            await server.start(register=Scripted().register, host="127.0.0.1", port=port)
    with pytest.raises(errors.StartupError, match=r"cannot listen on port 0 of 203\.0\.113\.1"):
        await server.start(register=Scripted().register, host="203.0.113.1", port=0)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_address_of_ipv6_may_have_brackets(host: str) -> None:
    started = await server.start(register=Scripted().register, host=host, port=0)
    assert started.port
    await started.stop()


async def test_a_request_above_the_servers_size_is_refused() -> None:
    async with running(Scripted(), max_receive_bytes=1000) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.health.Check(health_pb2.HealthCheckRequest(service="x" * 1000))
        await target.health.Check(health_pb2.HealthCheckRequest())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_long_token_is_taken_every_time() -> None:
    async with running(Scripted()) as target:
        for _ in range(30):
            await target.health.Check(health_pb2.HealthCheckRequest(), metadata=token(15_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.health.Check(health_pb2.HealthCheckRequest(), metadata=token(17_000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def token(size: int) -> tuple[tuple[str, str], ...]:
    return (("authorization", "Bearer ".ljust(size, "x")),)


async def test_a_worker_answers_beside_more_calls_than_a_stranger_may_have() -> None:
    async with running(Scripted(), max_streams=channel.WORKER_STREAMS) as target:
        request = worker_pb2.WatchStatusRequest()
        calls = [target.worker.WatchStatus(request) for _ in range(channel.PUBLIC_STREAMS)]
        await asyncio.gather(*(call.read() for call in calls))
        await target.worker.Describe(worker_pb2.DescribeRequest(), timeout=20)
        for call in calls:
            call.cancel()


async def test_a_service_far_away_is_reached_at_the_first_try() -> None:
    async with (
        running(Scripted()) as target,
        slow_link(target.server.port, 0.4) as address,
        channel.open_channel(address) as opened,
    ):
        worker = worker_pb2_grpc.WorkerStub(opened)
        assert (await worker.Describe(worker_pb2.DescribeRequest())).model == "m"


async def test_health_can_begin_not_serving() -> None:
    health = Health(serving=False)
    async with running(Scripted(), health=health) as target:
        before = await target.health.Check(health_pb2.HealthCheckRequest())
        health.set_serving(True)
        after = await target.health.Check(health_pb2.HealthCheckRequest())
    assert before.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert after.status == health_pb2.HealthCheckResponse.SERVING


async def test_watches_end_with_the_drain() -> None:
    status = health_pb2.HealthCheckResponse
    async with running(Scripted()) as target:
        names = ("", SERVICE, SERVICE, "nobody")
        calls = [target.health.Watch(health_pb2.HealthCheckRequest(service=n)) for n in names]
        first = [(await call.read()).status for call in calls]
        assert first == [status.SERVING] * 3 + [status.SERVICE_UNKNOWN]
        calls[1].cancel()
        target.server.health.drain()
        target.server.health.set_serving(True)
        for call in (calls[0], calls[2]):
            assert (await call.read()).status == status.NOT_SERVING
            assert await call.read() is grpc.aio.EOF
        assert await calls[3].read() is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watches_are_bounded_and_make_room_where_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.rpc.health._MOST_WATCHES", 2)
    async with running(Scripted()) as target, asyncio.timeout(30):

        async def watch() -> grpc.aio.UnaryStreamCall:
            call = target.health.Watch(health_pb2.HealthCheckRequest())
            await call.read()
            return call

        first, _second = await watch(), await watch()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await target.health.Check(health_pb2.HealthCheckRequest())
        first.cancel()
        await until(lambda: target.server.health._watches == 1)
        await watch()


async def test_a_drain_is_told_though_it_begins_while_a_response_is_on_its_way() -> None:
    health = Health()
    watch = health.Watch(health_pb2.HealthCheckRequest(), None)
    assert (await anext(watch)).status == health_pb2.HealthCheckResponse.SERVING
    health.drain()  # the first is being written yet
    said = [response.status async for response in watch]
    assert said == [health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_a_stopping_server_is_no_bug_of_the_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Echo(drafter_pb2_grpc.DrafterServicer):
        async def Draft(self, requests, context):
            async for _ in requests:
                yield drafter_pb2.DraftResponse()

    def register(target: grpc.aio.Server) -> list[str]:
        drafter_pb2_grpc.add_DrafterServicer_to_server(Echo(), target)
        return ["paceline.v1.Drafter"]

    started = await server.start(register=register, host="127.0.0.1", port=0)
    async with channel.open_channel(f"127.0.0.1:{started.port}") as opened:
        call = drafter_pb2_grpc.DrafterStub(opened).Draft()
        await call.write(drafter_pb2.DraftRequest())
        await call.read()
        await started.stop()
        await asyncio.sleep(0.1)
    assert "handler failed" not in [record.message for record in caplog.records]


async def begin(servicer: Scripted, grace_s: float, **options) -> tuple[asyncio.Task, int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        server.serve(
            register=servicer.register,
            host="127.0.0.1",
            port=0,
            grace_s=grace_s,
            on_ready=port.set_result,
            **options,
        )
    )
    return task, await port


async def test_a_signal_drains_and_running_calls_finish() -> None:
    servicer, drained = Scripted(), asyncio.Event()

    async def on_drain() -> None:
        drained.set()

    task, port = await begin(servicer, 10, on_drain=on_drain)
    async with channel.open_channel(f"127.0.0.1:{port}") as opened:
        call = worker_pb2_grpc.WorkerStub(opened).WatchStatus(worker_pb2.WatchStatusRequest())
        assert (await call.read()).running == 1
        os.kill(os.getpid(), signal.SIGTERM)
        await drained.wait()
        servicer.release.set()
        assert (await call.read()).running == 2
        assert await call.read() is grpc.aio.EOF
    await asyncio.wait_for(task, 5)


async def test_a_second_signal_stops_at_once() -> None:
    retirement = server.Retirement()
    task, port = await begin(Scripted(), 60, retirement=retirement)
    async with channel.open_channel(f"127.0.0.1:{port}") as opened:
        call = worker_pb2_grpc.WorkerStub(opened).WatchStatus(worker_pb2.WatchStatusRequest())
        await call.read()
        retirement.begin()
        os.kill(os.getpid(), signal.SIGTERM)  # only joins the drain that is under way
        await asyncio.sleep(0.1)
        assert not task.done()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(task, 5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_server_whose_probes_cannot_be_answered_is_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with pytest.raises(errors.StartupError, match=r"is already in use; .* with --health-port$"):
        await server.serve(
            register=Scripted().register,
            host="127.0.0.1",
            port=port,
            health_port=port,
            grace_s=0,
        )
    check_port("127.0.0.1", port)


async def test_a_service_may_retire_with_a_grace_of_its_own() -> None:
    retirement = server.Retirement()
    task, port = await begin(Scripted(), 60, retirement=retirement)
    async with channel.open_channel(f"127.0.0.1:{port}") as opened:
        call = worker_pb2_grpc.WorkerStub(opened).WatchStatus(worker_pb2.WatchStatusRequest())
        await call.read()
        retirement.begin(0.05)
        retirement.begin(60.0)
        await asyncio.wait_for(task, 5)


async def test_a_service_may_end_its_drain() -> None:
    retirement, draining = server.Retirement(), asyncio.Event()

    async def on_drain() -> None:
        draining.set()
        await asyncio.Event().wait()

    task, port = await begin(Scripted(), 60, retirement=retirement, on_drain=on_drain)
    async with channel.open_channel(f"127.0.0.1:{port}") as opened:
        call = worker_pb2_grpc.WorkerStub(opened).WatchStatus(worker_pb2.WatchStatusRequest())
        await call.read()
        retirement.begin()
        await draining.wait()
        retirement.begin(0.0)
        await asyncio.wait_for(task, 5)


def test_keepalive_options_match() -> None:
    client, host = dict(channel.CLIENT_OPTIONS), dict(channel.server_options())
    allowed = host["grpc.http2.min_ping_interval_without_data_ms"]
    for end in (client, host):
        assert end["grpc.keepalive_time_ms"] > allowed
        assert end["grpc.http2.ping_timeout_ms"] == end["grpc.keepalive_timeout_ms"]
        assert end["grpc.http2.max_pings_without_data"] == 0
    assert host["grpc.keepalive_permit_without_calls"]
    for size in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert client[size] == host[size]
