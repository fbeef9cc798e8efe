"""When the SDK asks again: what was lost, how often, how long."""

from __future__ import annotations

import grpc
import pytest
from paceline import _resume, errors
from paceline._accumulator import Accumulator
from paceline._conversion import from_status
from paceline._resume import Resumption
from paceline.v1 import inference_pb2 as pb

REQUEST = pb.GenerateRequest(text="go", max_tokens=9, session_id="s")
LOST = from_status(grpc.StatusCode.UNAVAILABLE, "Socket closed", "h:1")
FULL = from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "8 requests are running", "h:1")
CANCELLED = from_status(grpc.StatusCode.CANCELLED, "the channel was closed", "h:1")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(_resume.time, "monotonic", lambda: now[0])
    return now


def resumption(timeout_s: float = 3600, enabled: bool = True) -> Resumption:
    return Resumption(REQUEST, timeout_s, lambda: enabled)


def received(*chunks: pb.GenerationChunk) -> Accumulator:
    folded = Accumulator()
    started = pb.GenerationStarted(
        request_id="r", model="m", seed=3, numerics="n", prompt_digest=b"d", prompt_time_s=9
    )
    folded.add(pb.GenerateResponse(started=started))
    for chunk in chunks:
        folded.add(pb.GenerateResponse(chunk=chunk))
    return folded


def test_the_request_goes_out_as_it_is_until_something_was_received() -> None:
    assert resumption().request(Accumulator()) is REQUEST


def test_the_next_request_tells_what_is_there() -> None:
    first = pb.GenerationChunk(text="a", token_ids=[4], sources=[2], rounds=1)
    second = pb.GenerationChunk(token_ids=[5, 6], sources=[1, 3], rounds=2, drafted_tokens=7)
    request = resumption().request(received(first, second))
    assert (request.text, request.max_tokens, request.session_id) == ("go", 9, "s")
    assert (request.request_id, request.model, request.sampling.seed) == ("r", "m", 3)
    assert request.resume == pb.Resume(
        token_ids=[4, 5, 6],
        sources=[2, 1, 3],
        rounds=2,
        drafted_tokens=7,
        numerics="n",
        prompt_digest=b"d",
        prompt_time_s=9,
    )
    assert not REQUEST.HasField("resume")


def test_text_that_came_without_ids_is_not_taken_twice() -> None:
    tail = pb.GenerationChunk(text="held")
    folded = received(pb.GenerationChunk(text="a", token_ids=[4], sources=[2]), tail)
    resumption().request(folded)
    again = pb.GenerationStarted(request_id="r", model="m", seed=3, resumed_tokens=1)
    folded.add(pb.GenerateResponse(started=again))
    assert folded.add(pb.GenerateResponse(chunk=tail)) is None
    folded.add(pb.GenerateResponse(complete=pb.GenerationComplete()))
    result = folded.result()
    assert result is not None
    assert result.text == "aheld"


def test_ids_are_told_with_the_start_that_they_came_after() -> None:
    folded = received()
    resumption().request(folded)
    anew = pb.GenerationStarted(
        request_id="r", model="m", seed=3, numerics="n", prompt_digest=b"other", prompt_time_s=9
    )
    folded.add(pb.GenerateResponse(started=anew))
    folded.add(pb.GenerateResponse(chunk=pb.GenerationChunk(token_ids=[4], sources=[2])))
    on = pb.GenerationStarted(request_id="r", model="m", seed=3, resumed_tokens=1)
    folded.add(pb.GenerateResponse(started=on))
    request = resumption().request(folded)
    assert (request.request_id, request.model, request.sampling.seed) == ("r", "m", 3)
    assert request.resume.prompt_digest == b"other", "the ids go on from that prompt"
    assert (request.resume.numerics, request.resume.prompt_time_s) == ("n", 9)


def test_a_gateway_that_begins_anew_is_refused() -> None:
    folded = received(pb.GenerationChunk(text="a", token_ids=[4], sources=[2]))
    with pytest.raises(errors.UnimplementedError):
        folded.add(pb.GenerateResponse(started=pb.GenerationStarted(seed=3)))


@pytest.mark.parametrize(
    "code",
    [code for code in grpc.StatusCode if code.name not in ("OK", "UNAVAILABLE", "CANCELLED")],
)
def test_other_errors_are_the_end(code: grpc.StatusCode) -> None:
    error = from_status(code, "no", "h:1")
    assert resumption().pause_s(error, received()) is None


def test_opted_out_and_closed() -> None:
    assert resumption(enabled=False).pause_s(LOST, received()) is None


@pytest.mark.parametrize("error", [LOST, CANCELLED])
def test_a_lost_gateway_is_not_the_end(error: errors.RpcError) -> None:
    assert resumption().pause_s(error, received()) is not None


def test_nobody_there_at_the_first_call_is_the_end() -> None:
    error = from_status(grpc.StatusCode.UNAVAILABLE, "x", "h:1")
    error.__cause__ = Details("failed to connect to all addresses")
    assert resumption().pause_s(error, Accumulator()) is None
    assert resumption().pause_s(error, received()) is not None
    asked = resumption()
    assert asked.pause_s(LOST, Accumulator()) is not None
    assert asked.pause_s(error, Accumulator()) is not None, "somebody was there a moment ago"


def test_who_closed_the_first_connection_may_be_up_in_a_moment() -> None:
    error = from_status(grpc.StatusCode.UNAVAILABLE, "x", "h:1")
    error.__cause__ = Details(
        "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: "
        "Socket closed"
    )
    assert resumption().pause_s(error, Accumulator()) is not None


class Details(Exception):
    def __init__(self, details: str) -> None:
        self.details = lambda: details


def test_a_few_tries_before_anything_was_received(clock: list[float]) -> None:
    asked = resumption()
    pauses = [asked.pause_s(LOST, Accumulator()) for _ in range(4)]
    assert [pause is not None for pause in pauses] == [True, True, True, False]


def test_as_long_as_the_window_since_the_last_progress(clock: list[float]) -> None:
    asked, folded, waited = resumption(), received(), 0.0
    for _ in range(2):
        before, pauses = clock[0], []
        while (pause := asked.pause_s(LOST, folded)) is not None:
            pauses.append(pause)
            clock[0] += pause
        waited = clock[0] - before
        assert 15 < waited <= 20
        assert pauses[0] <= 0.1 < max(pauses) <= 2
        folded.add(pb.GenerateResponse(chunk=pb.GenerationChunk(token_ids=[1], sources=[2])))


def test_a_gateway_that_is_full_may_have_room_in_a_moment(clock: list[float]) -> None:
    """For a text that another one began, and as long as for one that is lost."""
    asked, folded = resumption(), received()
    assert asked.pause_s(FULL, folded) is None, "it began the text itself"
    assert asked.pause_s(LOST, folded) is not None
    while (pause := asked.pause_s(FULL, folded)) is not None:
        clock[0] += pause
    assert 15 < clock[0] - 100.0 <= _resume._WINDOW_S
    assert asked.pause_s(LOST, received(pb.GenerationChunk(token_ids=[1], sources=[2]))) is not None
    two = [pb.GenerationChunk(token_ids=[1], sources=[2])] * 2
    assert asked.pause_s(FULL, received(*two)) is None, "it had room, and more came"


def test_who_is_told_at_the_first_call_that_all_is_full_may_ask_again(clock: list[float]) -> None:
    asked = resumption()
    assert asked.pause_s(LOST, Accumulator()) is not None
    assert asked.pause_s(FULL, Accumulator()) is None


def test_never_beyond_the_timeout(clock: list[float]) -> None:
    asked = resumption(timeout_s=3)
    assert asked.pause_s(LOST, received()) is not None
    clock[0] += 2.97
    assert asked.pause_s(LOST, received()) is None
    clock[0] += 1
    with pytest.raises(errors.DeadlineExceededError):
        asked.request(received())


def test_a_timeout_that_passes_before_the_first_call_is_told_by_that(clock: list[float]) -> None:
    asked = resumption(timeout_s=0.001)
    clock[0] += 1
    assert asked.request(Accumulator()) is REQUEST


def test_taking_the_request_on_again_is_no_progress(clock: list[float]) -> None:
    """Gateways that answer `started` and are lost before any text do not go on for ever."""
    folded, again = received(), resumption()
    tries = 0
    while (pause := again.pause_s(LOST, folded)) is not None:
        clock[0] += pause
        tries += 1
        started = pb.GenerationStarted(request_id="r", model="m", seed=3, numerics="n")
        folded.add(pb.GenerateResponse(started=started))
        assert tries < 1000
    assert clock[0] - 100.0 <= _resume._WINDOW_S
