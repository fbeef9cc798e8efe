"""Bad input: the code, the field and the rule."""

import dataclasses
from types import SimpleNamespace

import pytest

from common.errors import FailedPrecondition, InvalidArgument, PacelineError
from common.lookahead_sizes import LookaheadSizes
from common.sampling_params import SamplingParams
from gateway.model import Model
from gateway.request import Prompt
from gateway.validation import METHODS, check, check_method, room
from tests.unit.gateway.asks import ask
from verifier.methods import METHODS as VERIFIERS_METHODS

BARE = Model(
    name="m",
    tokenizer_fingerprint="",
    vocab_size=100,
    max_model_len=64,
    methods=(),
    eos_token_ids=(),
    tokenizer=None,
)


def with_tokenizer(*, chat: bool) -> Model:
    tokenizer = SimpleNamespace(has_chat_template=chat, longest_token_chars=10)
    return dataclasses.replace(BARE, tokenizer=tokenizer)


TEXT, CHAT = with_tokenizer(chat=False), with_tokenizer(chat=True)


@pytest.mark.parametrize(
    ("changes", "model", "error", "message"),
    [
        ({"prompt": Prompt()}, CHAT, InvalidArgument, "input: one of text, token_ids and chat"),
        (
            {"prompt": Prompt(messages=[])},
            CHAT,
            InvalidArgument,
            "chat.messages: must not be empty",
        ),
        (
            {"prompt": Prompt(text="x" * 641)},
            TEXT,
            InvalidArgument,
            "text: must have at most 640 characters (the model's 64 tokens of at most 10), got 641",
        ),
        (
            {"prompt": Prompt(messages=[{"role": "user", "content": "x" * 319}] * 2)},
            CHAT,
            InvalidArgument,
            "chat.messages: must have at most 640 characters",
        ),
        ({"prompt": Prompt(text="x")}, BARE, FailedPrecondition, "send token_ids"),
        ({"prompt": Prompt(messages=[{}])}, TEXT, FailedPrecondition, "no chat template"),
        ({"stop": ("x",)}, BARE, FailedPrecondition, "use stop_token_ids"),
        ({"stop": ("",)}, TEXT, InvalidArgument, "stop: each must have 1 to 256 characters, got 0"),
        ({"stop": ("x" * 257,)}, TEXT, InvalidArgument, "got 257"),
        ({"stop": ("x",) * 17}, TEXT, InvalidArgument, "stop: must be at most 16 strings, got 17"),
        (
            {"stop_token_ids": (1,) * 1025},
            BARE,
            InvalidArgument,
            "stop_token_ids: must be at most 1024 ids, got 1025",
        ),
        ({"stop_token_ids": (100,)}, BARE, InvalidArgument, "stop_token_ids: ids must be"),
        ({"max_tokens": 0}, BARE, InvalidArgument, "max_tokens: must be at least 1, got 0"),
        (
            {"sampling": SamplingParams(top_p=1.5)},
            BARE,
            InvalidArgument,
            "sampling.top_p: must be in (0, 1]",
        ),
        (
            {"sampling": SamplingParams(temperature=-1)},
            BARE,
            InvalidArgument,
            "sampling.temperature",
        ),
        (
            {"method": "magic"},
            BARE,
            InvalidArgument,
            "speculation.method: must be one of auto, plain, draft",
        ),
        (
            {"lookahead": LookaheadSizes(window=65)},
            BARE,
            InvalidArgument,
            "speculation.lookahead.window: must be 0, or 1 to 64, got 65",
        ),
        (
            {"lookahead": LookaheadSizes(ngram=1)},
            BARE,
            InvalidArgument,
            "speculation.lookahead.ngram: must be 0, or 2 to 8, got 1",
        ),
        (
            {"lookahead": LookaheadSizes(guesses=65)},
            BARE,
            InvalidArgument,
            "speculation.lookahead.guesses: must be 0, or 1 to 64, got 65",
        ),
        ({"session_id": "x" * 300}, BARE, InvalidArgument, "session_id: must have at most 256"),
    ],
)
def test_bad_input_is_named(
    changes: dict, model: Model, error: type[PacelineError], message: str
) -> None:
    with pytest.raises(error) as caught:
        check(ask(**changes), model)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", [*METHODS, "draft+lookahead", "eagle+ngram"])
def test_known_methods(method: str) -> None:
    check_method(method)


def test_known_methods_are_those_of_verifiers() -> None:
    assert {*METHODS} == {"auto", *VERIFIERS_METHODS}


@pytest.mark.parametrize("method", ["", "Draft", "auto+draft", "plain+draft", "draft+draft", "+"])
def test_unknown_methods(method: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must be one of auto, plain, draft"):
        check_method(method)


def test_room_is_what_the_model_has_left() -> None:
    assert room(ask(), 60, BARE) == 4
    assert room(ask(max_tokens=3), 60, BARE) == 3
    with pytest.raises(InvalidArgument, match="max_tokens: must be at most 4 after a prompt of 60"):
        room(ask(max_tokens=5), 60, BARE)
    with pytest.raises(InvalidArgument, match="token_ids: must have at most 63 tokens, got 64"):
        room(ask(), 64, BARE)
    for field, prompt in (("token_ids", Prompt(token_ids=[])), ("text", Prompt(text=""))):
        with pytest.raises(InvalidArgument, match=f"^{field}: must have at least 1 token, got 0"):
            room(ask(prompt=prompt), 0, BARE)


def test_no_text_may_be_a_prompt() -> None:
    """Its tokenizer may put a token before it."""
    check(ask(prompt=Prompt(text="")), TEXT)


def test_a_prompt_of_the_most_characters_passes() -> None:
    check(ask(prompt=Prompt(text="x" * 640)), TEXT)
    check(ask(prompt=Prompt(messages=[{"role": "user", "content": "x" * 636}])), CHAT)
