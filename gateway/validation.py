"""Is a request sound, and can this deployment serve it? Messages name the field and the rule.

Checks come in two halves: `check` needs only the request, `check_ids` and `room` the prompt's ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import FailedPrecondition, InvalidArgument
from gateway.model import Model
from gateway.request import Ask, Prompt, Resume

# Methods that propose drafts, those of `verifier.methods`; several may be joined with "+".
PROPOSERS = ("draft", "medusa", "eagle", "lookahead", "ngram")
METHODS = ("auto", "plain", *PROPOSERS)

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 1024
MAX_NAME_CHARS = 256
MAX_ROUND_DRAFTS = 1024
"""Draft tokens that a round may have checked, on average: far above what a pass takes."""


def check(ask: Ask, model: Model) -> None:
    """Checks everything but lengths.

    Raises:
        InvalidArgument: A field is wrong.
        FailedPrecondition: The model has no tokenizer, or no chat template, and needs one.
    """
    _check_name("request_id", ask.request_id)
    _check_name("session_id", ask.session_id)
    check_method(ask.method)
    ask.lookahead.validate()
    ask.sampling.validate(model.vocab_size)
    check_count("stop_token_ids", ask.stop_token_ids, MAX_STOP_IDS)
    check_ids("stop_token_ids", ask.stop_token_ids, model.vocab_size)
    _check_stops(ask.stop, model)
    check_prompt(ask.prompt, model)
    if ask.max_tokens == 0:
        raise InvalidArgument("max_tokens", "must be at least 1, got 0")
    if ask.resume is not None:
        _check_resume(ask, ask.resume, model)


def room(ask: Ask, prompt_tokens: int, model: Model) -> int:
    """Returns how many tokens may be generated.

    Args:
        ask: The request; `max_tokens` None asks for all that fits.
        prompt_tokens: Length of its prompt.
        model: The model, whose limit counts prompt and output together.

    Raises:
        InvalidArgument: The prompt is empty or too long, alone or with `max_tokens`.
    """
    left = model.max_model_len - prompt_tokens
    if prompt_tokens == 0:
        raise InvalidArgument(ask.prompt.field, "must have at least 1 token, got 0")
    if left < 1:
        raise InvalidArgument(
            ask.prompt.field,
            f"must have at most {model.max_model_len - 1} tokens, got {prompt_tokens}",
        )
    if ask.max_tokens is not None and ask.max_tokens > left:
        raise InvalidArgument(
            "max_tokens",
            f"must be at most {left} after a prompt of {prompt_tokens} tokens (the model's limit "
            f"is {model.max_model_len} together), got {ask.max_tokens}",
        )
    most = left if ask.max_tokens is None else ask.max_tokens
    if ask.resume is not None:
        check_count("resume.token_ids", ask.resume.ids, most)
    return most


def check_prompt(prompt: Prompt, model: Model) -> None:
    """Checks a prompt before it is encoded.

    Raises:
        InvalidArgument: It is none, or cannot fit.
        FailedPrecondition: It is of a form that the model does not take.
    """
    if prompt.token_ids is not None:
        return
    if prompt.text is None and prompt.messages is None:
        raise InvalidArgument("input", "one of text, token_ids and chat must be set")
    require_tokenizer(model, prompt.field)
    if prompt.messages is not None and not model.has_chat_template:
        raise FailedPrecondition(f"chat: model {model.name} has no chat template; send text")
    if prompt.messages is not None and not prompt.messages:
        raise InvalidArgument(prompt.field, "must not be empty")
    _check_chars(prompt, model)


def require_tokenizer(model: Model, field: str) -> None:
    """Raises FailedPrecondition where a model takes token ids only."""
    if model.tokenizer is None:
        raise FailedPrecondition(
            f"{field}: model {model.name} has no tokenizer here; send token_ids"
        )


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidArgument where an id is not in the model's vocabulary."""
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise InvalidArgument(field, f"ids must be in [0, {vocab_size - 1}], got {highest}")


def check_count(field: str, ids: Sequence[int], most: int) -> None:
    """Raises InvalidArgument where there are more than `most` ids."""
    if len(ids) > most:
        raise InvalidArgument(field, f"must be at most {most} ids, got {len(ids)}")


def check_method(method: str) -> None:
    """Raises InvalidArgument where a method is none that Paceline knows."""
    parts = method.split("+")
    joined = len(set(parts)) == len(parts) and all(part in PROPOSERS for part in parts)
    if method not in METHODS and not joined:
        names = ", ".join(METHODS)
        problem = f"must be one of {names} (drafting ones also joined with +), got {method[:64]!r}"
        raise InvalidArgument("speculation.method", problem)


def _check_resume(ask: Ask, resume: Resume, model: Model) -> None:
    check_ids("resume.token_ids", resume.ids, model.vocab_size)
    if len(resume.sources) != len(resume.ids):
        problem = (
            f"must be one for each of token_ids ({len(resume.ids)}), got {len(resume.sources)}"
        )
        raise InvalidArgument("resume.sources", problem)
    if resume.rounds > len(resume.ids):
        problem = f"must be at most {len(resume.ids)}, one for each of token_ids"
        raise InvalidArgument("resume.rounds", f"{problem}, got {resume.rounds}")
    if resume.drafted_tokens > resume.rounds * MAX_ROUND_DRAFTS:
        problem = f"must be at most {MAX_ROUND_DRAFTS} for each of rounds ({resume.rounds})"
        raise InvalidArgument("resume.drafted_tokens", f"{problem}, got {resume.drafted_tokens}")
    ends = {*ask.stop_token_ids, *(() if ask.ignore_eos else model.eos_token_ids)}
    if not ends.isdisjoint(resume.ids[:-1]):
        raise InvalidArgument("resume.token_ids", "must not go on after an id that ends the text")


def _check_chars(prompt: Prompt, model: Model) -> None:
    """Refuses what cannot fit before it is encoded: that takes a hundred times its size."""
    assert model.tokenizer is not None
    longest = model.tokenizer.longest_token_chars
    most = model.max_model_len * longest
    if prompt.chars > most:
        raise InvalidArgument(
            prompt.field,
            f"must have at most {most} characters (the model's {model.max_model_len} tokens of at "
            f"most {longest}), got {prompt.chars}",
        )


def _check_stops(stops: Sequence[str], model: Model) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidArgument("stop", f"must be at most {MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            problem = f"each must have 1 to {MAX_STOP_CHARS} characters, got {len(stop)}"
            raise InvalidArgument("stop", problem)
    if stops and model.tokenizer is None:
        raise FailedPrecondition(
            f"stop: model {model.name} has no tokenizer here; use stop_token_ids"
        )


def _check_name(field: str, name: str) -> None:
    if len(name) > MAX_NAME_CHARS:
        problem = f"must have at most {MAX_NAME_CHARS} characters, got {len(name)}"
        raise InvalidArgument(field, problem)
