"""Prompts to ids, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from common.tokenizer import Tokenizer
from gateway.request import Prompt

T = TypeVar("T")

# A thread switch costs about what encoding this much text does.
_INLINE_CHARS = 4_000
# What a template adds to a turn, and takes for it besides: an empty turn costs as much.
_TURN_CHARS = 32


async def prompt_ids(prompt: Prompt, tokenizer: Tokenizer | None) -> Sequence[int]:
    """Returns a prompt's ids; text and chat need the tokenizer.

    Raises:
        InvalidArgument: The chat template refuses the messages.
    """
    if prompt.token_ids is not None:
        return prompt.token_ids
    assert tokenizer is not None, "validation comes first"
    if prompt.text is not None:
        text = prompt.text
        return await _off_loop(lambda: tokenizer.encode(text), prompt.chars)
    messages = prompt.messages or ()
    size = prompt.chars + _TURN_CHARS * len(messages)
    return await _off_loop(lambda: tokenizer.apply_chat_template(messages), size)


async def text_of(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text of ids, special tokens left out."""
    return await _off_loop(lambda: tokenizer.decode(ids), len(ids))


async def _off_loop(work: Callable[[], T], size: int) -> T:
    return work() if size <= _INLINE_CHARS else await asyncio.to_thread(work)
