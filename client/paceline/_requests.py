"""Checks arguments and builds protobuf from them, once for both clients.

Only what protobuf could not carry, or no server takes, is refused here: wrong types, integers that
do not fit, two prompts at once. What a model or deployment allows is the server's to say.
"""

from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any, SupportsIndex, get_args

from paceline._types import AcceptanceRule, Lookahead
from paceline.errors import ArgumentError
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
LONGEST_TIMEOUT_S = 1e8
"""About three years. gRPC counts deadlines in 64 bits: one much later has passed at once."""


def prompt_input(**alternatives: Any) -> dict[str, Any]:
    """Returns the one field of a request's `input` that was given, ready for its constructor.

    Args:
        alternatives: Each argument of the call, None where it was not given: the text, by whatever
            name, then `token_ids` where the call takes them, then `messages`.
    """
    field, *others, last = alternatives
    given = [name for name, value in alternatives.items() if value is not None]
    if len(given) != 1:
        raise ArgumentError(
            field,
            f"give exactly one of {', '.join([field, *others])} and {last}, "
            f"got {' and '.join(given) or 'none'}",
        )
    value = alternatives[given[0]]
    if given == ["token_ids"]:
        return {"token_ids": pb.TokenIds(ids=token_ids("token_ids", value))}
    if given == ["messages"]:
        return {"chat": chat(value)}
    if not isinstance(value, str) and isinstance(value, Iterable):
        ids = "ids go into token_ids=, " if "token_ids" in others else ""
        raise TypeError(
            f"{field} must be str, got {type(value).__name__}; {ids}a conversation into messages="
        )
    return {"text": text(field, value)}


def chat(messages: Iterable[Mapping[str, object]]) -> pb.ChatMessages:
    """Builds a conversation from mappings with `role` and `content`."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"messages must be a list of dicts, got {type(messages).__name__}")
    return pb.ChatMessages(
        messages=[_chat_message(f"messages[{i}]", turn) for i, turn in enumerate(messages)]
    )


def sampling(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    logit_bias: Mapping[int, float] | None,
    seed: int | None,
) -> types_pb2.SamplingParams:
    """Builds the sampling parameters."""
    if logit_bias is not None and not isinstance(logit_bias, Mapping):
        raise TypeError(f"logit_bias must map ids to numbers, got {type(logit_bias).__name__}")
    return types_pb2.SamplingParams(
        temperature=number("temperature", temperature),
        top_k=integer("top_k", top_k),
        top_p=number("top_p", top_p),
        min_p=number("min_p", min_p),
        repetition_penalty=number("repetition_penalty", repetition_penalty),
        logit_bias={
            integer("logit_bias", key): number(f"logit_bias[{key}]", value)
            for key, value in (logit_bias or {}).items()
        },
        seed=None if seed is None else integer("seed", seed, UINT64_MAX),
    )


def speculation(
    method: str, draft_tokens: int, acceptance: str, sizes: Lookahead | None
) -> types_pb2.SpeculationOptions:
    """Builds the speculation options."""
    rules = get_args(AcceptanceRule)
    if text("acceptance", acceptance) not in rules:
        raise ArgumentError("acceptance", f"must be one of {', '.join(rules)}, got {acceptance!r}")
    return types_pb2.SpeculationOptions(
        method=text("method", method),
        draft_tokens=integer("draft_tokens", draft_tokens),
        acceptance=f"ACCEPTANCE_{acceptance.upper()}",
        lookahead=None if sizes is None else lookahead(sizes),
    )


def lookahead(sizes: Lookahead) -> types_pb2.LookaheadOptions:
    """Builds the sizes of lookahead decoding."""
    if not isinstance(sizes, Lookahead):
        raise TypeError(f"lookahead must be paceline.Lookahead, got {type(sizes).__name__}")
    return types_pb2.LookaheadOptions(
        window=integer("lookahead.window", sizes.window),
        ngram=integer("lookahead.ngram", sizes.ngram),
        guesses=integer("lookahead.guesses", sizes.guesses),
    )


def stop_strings(stop: str | Iterable[str] | None) -> list[str]:
    """Returns the stop strings; a bare string is one of them."""
    if stop is None:
        return []
    if isinstance(stop, str):
        stop = [stop]
    if not isinstance(stop, Iterable):
        raise TypeError(f"stop must be str or a list of str, got {type(stop).__name__}")
    return [text("stop", one) for one in stop]


def token_ids(field: str, ids: Iterable[SupportsIndex]) -> list[int]:
    """Returns ids as plain integers; takes lists, tuples, arrays."""
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
        raise TypeError(f"{field} must be a list of int, got {type(ids).__name__}")
    return [integer(f"{field}[{i}]", one) for i, one in enumerate(ids)]


def text(field: str, value: object) -> str:
    """Returns a string that protobuf can carry."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ArgumentError(field, f"is not valid Unicode at character {exc.start}") from exc
    return value


def optional_text(field: str, value: object) -> str:
    """Returns a string that protobuf can carry, empty for None."""
    return "" if value is None else text(field, value)


def integer(field: str, value: Any, limit: int = UINT32_MAX, *, least: int = 0) -> int:
    """Returns an integer from `least` to `limit`; takes whatever says it is one, as NumPy's do."""
    try:
        if isinstance(value, bool):
            raise TypeError
        as_int = index(value)
    except TypeError:
        raise TypeError(f"{field} must be int, got {type(value).__name__}") from None
    if not least <= as_int <= limit:
        raise ArgumentError(field, f"must be from {least} to {limit}, got {as_int}")
    return as_int


def number(field: str, value: object) -> float:
    """Returns a number as float."""
    try:
        return float(_real(field, value))
    except OverflowError:
        raise ArgumentError(field, "does not fit a float") from None


def flag(field: str, value: object) -> bool:
    """Returns a truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"{field} must be bool, got {type(value).__name__}")
    return value


def timeout_s(value: float) -> float:
    """Returns a timeout in seconds; infinity, as any number too large, as the longest."""
    seconds = number("timeout", min(_real("timeout", value), LONGEST_TIMEOUT_S))
    if not seconds > 0:
        raise ArgumentError("timeout", f"must be above 0 seconds, got {value}")
    return seconds


def _real(field: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{field} must be a number, got {type(value).__name__}")
    return value


def _chat_message(field: str, turn: Mapping[str, object]) -> pb.ChatMessage:
    if not isinstance(turn, Mapping):
        raise TypeError(f"{field} must be a dict, got {type(turn).__name__}")
    if set(turn) != {"role", "content"}:
        raise ArgumentError(
            field, f"must have the keys role and content, got {sorted(map(str, turn))}"
        )
    return pb.ChatMessage(
        role=text(f"{field}.role", turn["role"]),
        content=text(f"{field}.content", turn["content"]),
    )
