"""What cannot be sent is refused here, by name; all else goes to the server as it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import _requests as checked
from paceline.v1 import inference_pb2 as pb


class Recorder(paceline.Client):
    """A client that keeps the request instead of sending it."""

    def _start(self, request: pb.GenerateRequest, timeout_s: float, resume: bool) -> Any:
        return request, timeout_s


@pytest.fixture
def client() -> Any:
    with Recorder("localhost:1") as client:
        yield client


@pytest.mark.parametrize(
    "prompts",
    [{}, {"prompt": "a", "token_ids": [1]}, {"prompt": "", "messages": []}],
)
def test_exactly_one_prompt(client: Any, prompts: dict[str, Any]) -> None:
    with pytest.raises(paceline.ArgumentError, match="exactly one of prompt, token_ids and mess"):
        client.generate(**prompts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": [1, 2]}, r"prompt must be str, got list; ids go into token_ids="),
        ({"prompt": 1}, "prompt must be str, got int"),
        ({"token_ids": "12"}, "token_ids must be a list of int, got str"),
        ({"token_ids": [1, "2"]}, r"token_ids\[1\] must be int, got str"),
        ({"token_ids": [1.5]}, r"token_ids\[0\] must be int, got float"),
        ({"messages": {"role": "user"}}, "messages must be a list of dicts, got dict"),
        ({"messages": ["hi"]}, r"messages\[0\] must be a dict, got str"),
        ({"messages": [{"role": "user", "content": 1}]}, r"messages\[0\].content must be str"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens must be int, got str"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens must be int, got bool"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be a number, got str"),
        ({"prompt": "a", "top_k": 1.0}, "top_k must be int, got float"),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias must map ids to numbers, got list"),
        ({"prompt": "a", "logit_bias": {1: "x"}}, r"logit_bias\[1\] must be a number, got str"),
        ({"prompt": "a", "stop": [1]}, "stop must be str, got int"),
        ({"prompt": "a", "stop": 1}, "stop must be str or a list of str, got int"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be bool, got int"),
        ({"prompt": "a", "lookahead": (5, 3, 5)}, "lookahead must be paceline.Lookahead, got tup"),
        (
            {"prompt": "a", "lookahead": paceline.Lookahead(window=1.5)},  # type: ignore[arg-type]
            "lookahead.window must be int, got float",
        ),
        ({"prompt": "a", "method": None}, "method must be str, got NoneType"),
        ({"prompt": "a", "model": 3}, "model must be str, got int"),
        ({"prompt": "a", "model": 0}, "model must be str, got int"),
        ({"prompt": "a", "session_id": 0}, "session_id must be str, got int"),
        ({"prompt": "a", "session_id": False}, "session_id must be str, got bool"),
        ({"prompt": "a", "timeout": "1"}, "timeout must be a number, got str"),
    ],
)
def test_wrong_types(client: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        client.generate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": -3}, "max_tokens: must be from 1 to 4294967295, got -3"),
        ({"max_tokens": 0}, "max_tokens: must be from 1 to 4294967295, got 0"),
        ({"draft_tokens": -1}, "draft_tokens: must be from 0 to 4294967295, got -1"),
        ({"seed": 2**64}, "seed: must be from 0 to 18446744073709551615"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: must be from 0"),
        ({"stop_token_ids": [2**32]}, r"stop_token_ids\[0\]: must be from 0"),
        ({"lookahead": paceline.Lookahead(ngram=-1)}, "lookahead.ngram: must be from 0"),
        ({"acceptance": "magic"}, "acceptance: must be one of coupled, rejection, typical"),
        ({"timeout": 0}, "timeout: must be above 0 seconds, got 0"),
        ({"timeout": float("nan")}, "timeout: must be above 0"),
        ({"timeout": -math.inf}, "timeout: must be above 0 seconds, got -inf"),
        ({"temperature": 10**400}, "temperature: does not fit a float"),
        ({"logit_bias": {1: -(10**400)}}, r"logit_bias\[1\]: does not fit a float"),
        ({"timeout": -(10**400)}, "timeout: does not fit a float"),
        ({"prompt": "a\ud800"}, "prompt: is not valid Unicode at character 1"),
    ],
)
def test_values_that_cannot_be_sent(client: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(paceline.ArgumentError, match=message):
        client.generate(**{"prompt": "a", **arguments})


def test_messages_need_role_and_content(client: Any) -> None:
    with pytest.raises(paceline.ArgumentError, match=r"messages\[0\]: must have the keys role and"):
        client.generate(messages=[{"role": "user"}])
    with pytest.raises(paceline.ArgumentError, match=r"got \['1', 'role'\]"):
        client.generate(messages=[{"role": "user", 1: "a"}])


def test_what_a_server_may_judge_is_sent(client: Any) -> None:
    request, _ = client.generate("", temperature=-1, top_p=7, method="magic", max_tokens=1)
    assert request.WhichOneof("input") == "text"
    assert (request.sampling.temperature, request.sampling.top_p) == (-1, 7)
    assert request.speculation.method == "magic"
    assert request.HasField("max_tokens")


def test_unset_stays_unset(client: Any) -> None:
    request, timeout_s = client.generate("a")
    assert not request.HasField("max_tokens")
    assert not request.sampling.HasField("seed")
    assert not request.speculation.HasField("lookahead")
    assert request.sampling.top_p == 1.0
    assert timeout_s == 3600


def test_arrays_and_their_scalars_are_taken(client: Any) -> None:
    request, timeout_s = client.generate(
        token_ids=np.array([1, 2]), temperature=np.float32(0.5), seed=np.uint64(3), timeout=2
    )
    assert list(request.token_ids.ids) == [1, 2]
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 3)
    assert timeout_s == 2


@given(st.floats(min_value=0, exclude_min=True) | st.integers(1, 10**400))
def test_a_timeout_is_kept_up_to_the_longest_and_infinity_is_that(seconds: float) -> None:
    kept = checked.timeout_s(seconds)
    assert kept == (seconds if seconds <= 1e8 else 1e8)
    assert math.isfinite(kept)


def test_one_stop_string_needs_no_list(client: Any) -> None:
    request, _ = client.generate("a", stop="ab")
    assert list(request.stop) == ["ab"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "text: give exactly one of text and messages, got none"),
        (
            {"text": "a", "messages": []},
            "text: give exactly one of text and messages, got text and messages",
        ),
        ({"text": "\udcff"}, "text: is not valid Unicode at character 0"),
    ],
)
def test_tokenize_names_its_own_arguments(
    client: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(paceline.ArgumentError) as caught:
        client.tokenize(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("call", ["tokenize", "detokenize"])
def test_a_model_is_named_by_a_string(client: Any, call: str) -> None:
    with pytest.raises(TypeError, match="model must be str, got int"):
        getattr(client, call)("" if call == "tokenize" else [], model=0)


def test_tokenize_sends_ids_nowhere(client: Any) -> None:
    with pytest.raises(TypeError, match="text must be str, got list; a conversation into messages"):
        client.tokenize([1, 2])
