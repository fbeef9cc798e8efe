"""Prompts to ids and ids to text, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from common.tokenizer import LONG, Tokenizer
from gateway.request import Prompt

T = TypeVar("T")

# What a template adds to a turn, and takes for it besides: an empty turn costs as much.
_TURN_CHARS = 32


class Tokenizing:
    """Encodes and decodes: short texts at once, long ones on a thread. Used on one event loop.

    There is one thread, as an encoding takes a hundred times its text in memory. Each tenant has
    one text at a time in the line for it: the others wait for no more than that one. What is under
    way goes on when nobody waits for it any more, and keeps its place until it ends.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "tokenizing")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def prompt_ids(
        self, prompt: Prompt, tokenizer: Tokenizer | None, tenant: str
    ) -> Sequence[int]:
        """Returns a prompt's ids; text and chat need the tokenizer.

        Raises:
            InvalidArgument: The chat template refuses the messages.
        """
        if prompt.token_ids is not None:
            return prompt.token_ids
        assert tokenizer is not None, "validation comes first"
        if prompt.text is not None:
            return await self._done(partial(tokenizer.encode, prompt.text), prompt.chars, tenant)
        messages = prompt.messages or ()
        size = prompt.chars + _TURN_CHARS * len(messages)
        render = partial(tokenizer.apply_chat_template, messages, prompt.time_s)
        return await self._done(render, size, tenant)

    async def text_of(self, ids: Sequence[int], tokenizer: Tokenizer, tenant: str) -> str:
        """Returns the text of ids, special tokens left out."""
        return await self._done(partial(tokenizer.decode, ids), len(ids), tenant)

    async def _done(self, work: Callable[[], T], size: int, tenant: str) -> T:
        if size < LONG:
            return work()
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        await lock.acquire()
        try:
            begun = self._thread.submit(work)
        except RuntimeError:  # there is no thread to be had
            lock.release()
            raise

        def over(done: asyncio.Future[T]) -> None:
            lock.release()
            if not done.cancelled():
                done.exception()  # shielded, an error that nobody waits for would be told

        ended = asyncio.wrap_future(begun)
        ended.add_done_callback(over)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            begun.cancel()  # where it only stands in line
            raise
