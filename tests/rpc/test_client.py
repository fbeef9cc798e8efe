"""The sync client against a real server."""

from __future__ import annotations

import gc
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import paceline
import pytest
from paceline import errors
from paceline._conversion import CLASS_OF_CODE, never_connected
from paceline._resume import Resumption

from tests.rpc.scripted_gateway import ScriptedGateway, scripted_gateway

WAIT_S = 10


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as gateway:
        yield gateway


@pytest.fixture
def client(gateway: ScriptedGateway) -> Iterator[paceline.Client]:
    with paceline.Client(gateway.address) as client:
        yield client


def test_chunks_come_in_order_with_ids_and_sources(client: paceline.Client) -> None:
    chunks = list(client.generate("go"))
    assert [chunk.text for chunk in chunks] == ["Once ", "upon ", "", "a time"]
    assert [chunk.token_ids for chunk in chunks] == [(11,), (12, 13), (14,), ()]
    assert chunks[1].sources == ("accepted", "accepted")


def left_to_be_closed() -> Any:
    """Returns the channel that is closed a minute after a signal raised, and has it be now."""
    (timer,) = (t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.daemon)
    timer.cancel()
    timer.join(WAIT_S)
    timer.function()
    return timer.function.__self__.channel


@pytest.mark.parametrize("locked", [False, True], ids=["", "and what gRPC locks stays locked"])
def test_a_client_outlives_ctrl_c(
    gateway: ScriptedGateway, client: paceline.Client, locked: bool
) -> None:
    generation = client.generate("hang")
    chunks = iter(generation)
    next(chunks)
    assert gateway.hanging.wait(WAIT_S)
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(chunks)
    finally:
        signal.signal(signal.SIGINT, before)
    assert gateway.cancelled.wait(WAIT_S)
    condition = generation._call._state.condition if locked else threading.Condition()
    with condition:  # as happens now and then where it is raised
        assert client.generate("go", timeout=WAIT_S).result().text == "Once upon a time"
    left_to_be_closed()


def test_ctrl_c_in_one_thread_leaves_the_texts_of_others(
    gateway: ScriptedGateway, client: paceline.Client
) -> None:
    with client.generate("hang", resume=False) as other:
        chunks = iter(other)
        next(chunks)
        client._line.stub.ListModels = interrupted
        with pytest.raises(KeyboardInterrupt):
            client.models()
        former = left_to_be_closed()
        assert not gateway.cancelled.wait(0.1)
    assert left_to_be_closed() is former


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, TimeoutError, ValueError])
@pytest.mark.parametrize(
    ("rpc", "call"),
    [
        ("ListModels", lambda client: client.models()),
        ("Tokenize", lambda client: client.tokenize("a")),
        ("Detokenize", lambda client: client.detokenize([97])),
        ("Generate", lambda client: client.generate("go").result()),
    ],
)
def test_no_call_uses_the_channel_that_a_signal_left_locked(
    client: paceline.Client,
    rpc: str,
    call: Callable[[paceline.Client], Any],
    raised: type[BaseException],
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise raised

    former = client._line.channel
    setattr(client._line.stub, rpc, locked)
    with pytest.raises(raised):
        call(client)
    assert call(client)
    assert left_to_be_closed() is former


def test_what_fails_on_the_way_leaves_the_channel(gateway: ScriptedGateway) -> None:
    def token() -> str:
        raise LookupError("no token")

    with paceline.Client(gateway.address) as client:
        channel = client._line.channel
        with pytest.raises(errors.NotFoundError):
            client.tokenize("fail:NOT_FOUND")
        assert client._line.channel is channel
    with paceline.Client(gateway.address, token=token) as client:
        channel = client._line.channel
        with pytest.raises(LookupError):
            client.models()
        with pytest.raises(LookupError):
            client.generate("go")
        assert client._line.channel is channel


def test_the_result_has_every_field(client: paceline.Client) -> None:
    assert client.generate("go").result() == paceline.Result(
        text="Once upon a time",
        token_ids=(11, 12, 13, 14),
        finish_reason="length",
        stop=None,
        usage=paceline.Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1),
        speculation=paceline.Speculation(
            method="draft",
            acceptance="coupled",
            rounds=2,
            drafted_tokens=4,
            accepted_tokens=2,
            accepted_per_position=(1, 1),
            acceptance_rate=0.5,
            mean_accepted_length=2.0,
            lossy=False,
        ),
        seed=7,
        request_id="r-1",
        model="tiny",
    )


def test_the_result_holds_what_was_iterated_over_too(client: paceline.Client) -> None:
    generation = client.generate("go")
    chunks = iter(generation)
    assert next(chunks).text == "Once "
    assert generation.result().text == "Once upon a time"
    assert generation.result().text == "Once upon a time"


def test_options_reach_the_server(client: paceline.Client, gateway: ScriptedGateway) -> None:
    client.generate(
        messages=[{"role": "user", "content": "hi"}],
        model="tiny",
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        logit_bias={3: -1.5},
        seed=2**64 - 1,
        stop="\n",
        stop_token_ids=[9],
        ignore_eos=True,
        method="draft",
        draft_tokens=4,
        lookahead=paceline.Lookahead(window=7, guesses=9),
        acceptance="typical",
        session_id="s",
    ).result()
    request = gateway.requests[0]
    assert request.chat.messages[0].content == "hi"
    assert (request.model, request.max_tokens, request.session_id) == ("tiny", 5, "s")
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert (dict(request.sampling.logit_bias), request.sampling.seed) == ({3: -1.5}, 2**64 - 1)
    assert (list(request.stop), list(request.stop_token_ids)) == (["\n"], [9])
    assert request.ignore_eos
    assert (request.speculation.method, request.speculation.draft_tokens) == ("draft", 4)
    sizes = request.speculation.lookahead
    assert (sizes.window, sizes.ngram, sizes.guesses) == (7, 0, 9)
    assert request.speculation.acceptance == 3


def test_the_other_calls(client: paceline.Client) -> None:
    assert [model.methods for model in client.models()] == [("plain", "draft")]
    assert client.tokenize("ab") == [97, 98]
    assert client.detokenize([97, 98]) == "ab"


@pytest.mark.parametrize("code", CLASS_OF_CODE, ids=lambda code: code.name)
def test_every_code_is_its_exception(client: paceline.Client, code: grpc.StatusCode) -> None:
    with pytest.raises(CLASS_OF_CODE[code], match=f"told to fail with {code.name}") as stream:
        client.generate(f"fail:{code.name}").result()
    assert isinstance(stream.value.__cause__, grpc.RpcError)
    with pytest.raises(CLASS_OF_CODE[code]) as unary:
        client.tokenize(f"fail:{code.name}")
    assert isinstance(unary.value.__cause__, grpc.RpcError)


def test_a_failed_generation_keeps_failing(client: paceline.Client) -> None:
    generation = client.generate("fail:NOT_FOUND")
    for _ in range(2):
        with pytest.raises(errors.NotFoundError):
            generation.result()


def test_a_stream_without_an_end_is_an_error(client: paceline.Client) -> None:
    with pytest.raises(errors.InternalError, match="before the generation was complete"):
        client.generate("cut").result()


def test_what_came_whole_is_whole_though_its_end_was_lost(
    client: paceline.Client, gateway: ScriptedGateway
) -> None:
    generation = client.generate("lost")
    for _ in range(2):
        assert generation.result().text == "Once upon a time"
    generation.cancel()
    assert generation.result().finish_reason == "length"
    assert len(gateway.requests) == 1
    cancelled = client.generate("lost")
    cancelled.cancel()
    with pytest.raises(errors.CancelledError):
        cancelled.result()


def test_nobody_listening_names_the_address_and_the_remedy() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            paceline.Client(address) as client,
            pytest.raises(errors.UnavailableError, match=rf"{address} .*refused.*paceline up"),
        ):
            client.models()


def test_a_deadline_ends_the_call_on_both_sides(
    client: paceline.Client, gateway: ScriptedGateway
) -> None:
    with pytest.raises(errors.DeadlineExceededError, match="timeout"):
        client.generate("hang", timeout=0.3).result()
    assert gateway.cancelled.wait(WAIT_S)


def test_every_call_has_a_deadline(client: paceline.Client, gateway: ScriptedGateway) -> None:
    gateway.answering.clear()
    for call in (
        lambda: client.models(timeout=0.2),
        lambda: client.tokenize("ab", timeout=0.2),
        lambda: client.detokenize([97], timeout=0.2),
    ):
        with pytest.raises(errors.DeadlineExceededError, match="raise the timeout"):
            call()
    gateway.answering.set()
    assert client.tokenize("ab", timeout=math.inf) == [97, 98]
    with pytest.raises(paceline.ArgumentError, match="timeout: must be above 0 seconds, got 0"):
        client.models(timeout=0)


def test_ctrl_c_in_one_thread_leaves_the_questions_of_others(
    gateway: ScriptedGateway, client: paceline.Client
) -> None:
    gateway.answering.clear()
    with ThreadPoolExecutor() as pool:
        other = pool.submit(client.tokenize, "ab")
        while not gateway.requests:
            time.sleep(0.01)
        client._line.stub.ListModels = interrupted
        with pytest.raises(KeyboardInterrupt):
            client.models()
        former = left_to_be_closed()
        gateway.answering.set()
        assert other.result(WAIT_S) == [97, 98]
    assert left_to_be_closed() is former


@pytest.mark.parametrize("timeout", [math.inf, 1e18, 1e10])
def test_a_timeout_without_end_is_none(client: paceline.Client, timeout: float) -> None:
    assert client.generate("go", timeout=timeout).result().text == "Once upon a time"


def test_a_request_too_large_says_what_is_allowed(client: paceline.Client) -> None:
    message = (
        r"too large: it must have at most 67108864 bytes \(for most gateways far fewer\), got 67108"
    )
    prompt = "a" * (64 * 1024 * 1024)
    with pytest.raises(errors.InvalidArgumentError, match=message):
        client.generate(prompt).result()
    with pytest.raises(errors.InvalidArgumentError, match=message):
        client.tokenize(prompt)


def test_a_request_too_large_for_the_gateway_says_what_is_allowed(
    gateway: ScriptedGateway, client: paceline.Client
) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="at most 4194304 bytes, got 50000"):
        client.tokenize("a" * 5_000_000)
    assert gateway.requests == []


def test_a_host_that_does_not_exist_is_told_as_one_that_does_not_answer() -> None:
    with (
        paceline.Client("no host:1") as client,
        pytest.raises(errors.UnavailableError, match=r"at no host:1 .*paceline up") as told,
    ):
        client.generate("go").result()
    assert never_connected(told.value)


def test_cancel_reaches_the_server(client: paceline.Client, gateway: ScriptedGateway) -> None:
    generation = client.generate("hang")
    chunks = iter(generation)
    next(chunks)
    generation.cancel()
    assert gateway.cancelled.wait(WAIT_S)
    with pytest.raises(errors.CancelledError, match="by this client"):
        next(chunks)


def test_cancel_from_another_thread_wakes_the_reader(
    client: paceline.Client, gateway: ScriptedGateway
) -> None:
    generation = client.generate("hang")

    def cancel() -> None:
        gateway.hanging.wait(WAIT_S)
        generation.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(errors.CancelledError, match="by this client"):
        generation.result()
    thread.join()


def test_leaving_the_loop_cancels(client: paceline.Client, gateway: ScriptedGateway) -> None:
    generation = client.generate("hang")
    for _ in generation:
        break
    assert gateway.cancelled.wait(WAIT_S)


def test_dropping_a_generation_cancels(client: paceline.Client, gateway: ScriptedGateway) -> None:
    generation = client.generate("hang")
    assert gateway.hanging.wait(WAIT_S)
    del generation
    gc.collect()
    assert gateway.cancelled.wait(WAIT_S)


def test_leaving_the_context_cancels(client: paceline.Client, gateway: ScriptedGateway) -> None:
    with client.generate("hang"):
        assert gateway.hanging.wait(WAIT_S)
    assert gateway.cancelled.wait(WAIT_S)


def test_cancelling_after_the_end_does_nothing(client: paceline.Client) -> None:
    generation = client.generate("go")
    generation.result()
    generation.cancel()
    assert generation.result().text == "Once upon a time"


def test_closing_the_client_cancels_what_runs(gateway: ScriptedGateway) -> None:
    with paceline.Client(gateway.address) as client:
        generation = client.generate("hang")
        assert gateway.hanging.wait(WAIT_S)
    assert gateway.cancelled.wait(WAIT_S)
    with pytest.raises(errors.CancelledError):
        generation.result()
    with pytest.raises(paceline.ClientClosedError, match="closed"):
        client.generate("go")
    with pytest.raises(paceline.ClientClosedError):
        client.models()


def test_a_client_that_is_closed_meanwhile_takes_no_other_channel(
    client: paceline.Client,
) -> None:
    channel, tokenize = client._line.channel, client._line.stub.Tokenize

    def late(*args: Any, **options: Any) -> Any:
        client.close()
        return tokenize(*args, **options)

    client._line.stub.Tokenize = late
    with pytest.raises(paceline.ClientClosedError):
        client.tokenize("a")
    assert client._line.channel is channel


@pytest.mark.parametrize("closing", [True, False])
def test_closing_or_cancelling_ends_the_pause_before_another_try(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    pausing = threading.Event()
    monkeypatch.setattr(Resumption, "pause_s", lambda *_: (pausing.set(), 600.0)[1])
    raised: list[BaseException] = []
    with paceline.Client(gateway.address) as client:
        generation = client.generate("fail:UNAVAILABLE")

        def read() -> None:
            with pytest.raises(errors.CancelledError, match="by this client") as caught:
                generation.result()
            raised.append(caught.value)

        reader = threading.Thread(target=read)
        reader.start()
        assert pausing.wait(WAIT_S)
        if closing:
            client.close()
        else:
            generation.cancel()
        reader.join(WAIT_S)
    assert raised
    assert len(gateway.requests) == 1


def test_one_client_serves_many_threads(client: paceline.Client) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(client.generate("go").result().text))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["Once upon a time"] * 8


def test_generate_does_not_wait_for_the_server(client: paceline.Client) -> None:
    started = time.monotonic()
    generation = client.generate("hang")
    assert time.monotonic() - started < 1
    generation.cancel()
