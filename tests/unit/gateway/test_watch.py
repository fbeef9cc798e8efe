"""Times and codes of requests, on a clock of the test's own."""

from __future__ import annotations

import pytest

from common.errors import NotFound, Unavailable
from common.sampling_params import SamplingParams
from common.telemetry.distribution import Distribution
from gateway.request import Ask, Chunk, Complete, Prompt, Speculation, Started, Usage
from gateway.watch import OUTPUT_TOKEN_S, Watch

STARTED = Started(request_id="r", model="m", seed=0, prompt_tokens=1, numerics="n")
COMPLETE = Complete(
    finish_reason=2,
    usage=Usage(prompt_tokens=1, completion_tokens=5),
    speculation=Speculation(
        method="plain",
        acceptance="coupled",
        rounds=5,
        drafted_tokens=0,
        accepted_tokens=0,
        accepted_per_position=(),
    ),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(**prompt: object) -> Ask:
    return Ask(
        request_id="r",
        model="",
        prompt=Prompt(**prompt),  # type: ignore[arg-type]
        max_tokens=5,
        sampling=SamplingParams(),
        method="auto",
        draft_tokens=0,
        acceptance="coupled",
        stop=(),
        stop_token_ids=(),
        ignore_eos=False,
        session_id="",
    )


def only(distribution: Distribution) -> tuple[int, float]:
    return sum(distribution.counts), distribution.sum


def test_a_generation_is_timed_from_the_call() -> None:
    clock = Clock()
    watch = Watch(clock=clock)
    with watch.generation((), watch.clock()) as seen:
        seen.asked(ask(messages=[{"role": "user", "content": "x"}]))
        seen.saw(STARTED)
        for at, ids in ((1.0, (1, 2)), (1.5, ()), (2.0, (3,)), (4.0, (4, 5))):
            clock.now = at
            seen.saw(Chunk("", ids))
        seen.saw(COMPLETE)
        clock.now = 5.0
    kind = ("m", "chat")
    assert only(watch.first_token[kind]) == (1, 1.0)
    assert only(watch.output_token[kind]) == (1, 3.0 / 4)
    assert only(watch.duration[(*kind, "OK")]) == (1, 5.0)


def test_one_token_has_no_time_per_further_one() -> None:
    watch = Watch(clock=Clock())
    with watch.generation(None, watch.clock()) as seen:
        seen.asked(ask(text="x"))
        seen.saw(STARTED)
        seen.saw(Chunk("", (1,)))
    assert not watch.output_token
    assert list(watch.first_token) == [("m", "text_completion")]


def test_what_fails_before_it_has_a_model_is_counted_and_not_timed() -> None:
    watch = Watch(clock=Clock())
    with pytest.raises(NotFound), watch.call("Generate"), watch.generation((), watch.clock()):
        raise NotFound("no such model")
    assert watch.codes == {("Generate", "NOT_FOUND"): 1}
    assert not watch.duration


def test_what_fails_later_is_timed_under_its_code() -> None:
    watch = Watch(clock=Clock())

    def fail() -> None:
        with watch.generation((), watch.clock()) as seen:
            seen.asked(ask(text="x"))
            seen.saw(STARTED)
            raise Unavailable("gone")

    with pytest.raises(Unavailable):
        fail()
    assert list(watch.duration) == [("m", "text_completion", "UNAVAILABLE")]
    assert not watch.first_token


def test_other_calls_are_counted() -> None:
    watch = Watch()
    for _ in range(2):
        with watch.call("Tokenize"):
            pass
    assert watch.codes == {("Tokenize", "OK"): 2}


def test_tokens_of_one_draft_have_buckets_below_ten_milliseconds() -> None:
    assert len([bound for bound in OUTPUT_TOKEN_S if bound < 0.01]) >= 5
