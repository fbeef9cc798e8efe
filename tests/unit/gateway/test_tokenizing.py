"""Prompts become ids on the event loop where they are short, and beside it where they are not."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import pytest

from common.errors import InvalidArgument
from gateway.request import Prompt
from gateway.tokenizing import Tokenizing
from tests.waiting import until


class Where:
    """A tokenizer whose ids, and texts, say which thread it ran in."""

    def encode(self, text: str) -> list[int]:
        return [threading.get_ident()]

    def apply_chat_template(self, messages: Any, time_s: Any) -> list[int]:
        return [threading.get_ident()]

    def decode(self, ids: Any) -> str:
        return str(threading.get_ident())


TURN = {"role": "user", "content": ""}


@pytest.mark.parametrize(
    ("prompt", "beside"),
    [
        (Prompt(text="short"), False),
        (Prompt(text="long " * 1000), True),
        (Prompt(messages=[TURN]), False),
        (Prompt(messages=[TURN] * 20), False),
        (Prompt(messages=[TURN | {"content": "long " * 1000}]), True),
        (Prompt(messages=[{"role": "", "content": ""}] * 200), True),
    ],
)
async def test_much_work_does_not_hold_up_the_event_loop(prompt: Prompt, beside: bool) -> None:
    (thread,) = await Tokenizing().prompt_ids(prompt, Where(), "")  # type: ignore[arg-type]
    assert (thread != threading.get_ident()) == beside


@pytest.mark.parametrize(("tokens", "beside"), [(1, False), (5000, True)])
async def test_nor_does_decoding(tokens: int, beside: bool) -> None:
    thread = await Tokenizing().text_of([1] * tokens, Where(), "")  # type: ignore[arg-type]
    assert (thread != str(threading.get_ident())) == beside


class Slow:
    """A tokenizer that waits to be told; each text begins with its name."""

    def __init__(self, *, fails: bool = False) -> None:
        self.began: list[str] = []
        self._fails = fails
        self._go = threading.Semaphore(0)

    def encode(self, text: str) -> list[int]:
        self.began.append(text[:2])
        assert self._go.acquire(timeout=30)
        if self._fails:
            raise InvalidArgument("prompt", text)
        return []

    def end(self, times: int = 1) -> None:
        self._go.release(times)


def ask(tokenizing: Tokenizing, slow: Slow, name: str) -> asyncio.Task[Any]:
    """Has a long text encoded; its tenant is the first letter of its name."""
    prompt = Prompt(text=name.ljust(5000))
    return asyncio.create_task(tokenizing.prompt_ids(prompt, slow, name[0]))  # type: ignore[arg-type]


async def test_many_long_texts_of_a_tenant_hold_up_others_by_one() -> None:
    tokenizing, slow = Tokenizing(), Slow()
    asked = [ask(tokenizing, slow, name) for name in ("a1", "a2", "a3", "a4")]
    await until(lambda: slow.began == ["a1"])
    asked[1].cancel()
    asked += [ask(tokenizing, slow, name) for name in ("b1", "b2")]
    short = await tokenizing.prompt_ids(Prompt(text="c"), Where(), "a")  # type: ignore[arg-type]
    assert short[0] == threading.get_ident(), "what is short waits for none"
    slow.end(5)
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*asked)
    await asyncio.wait(asked)
    assert slow.began == ["a1", "b1", "a3", "b2", "a4"], "one at a time, and each tenant in turn"
    assert not tokenizing._locks


async def test_one_under_way_holds_up_its_tenant_though_nobody_waits_for_it() -> None:
    tokenizing, slow = Tokenizing(), Slow()
    asked = [ask(tokenizing, slow, name) for name in ("a1", "a2")]
    await until(lambda: slow.began == ["a1"])
    asked[0].cancel()
    await asyncio.wait(asked[:1], timeout=30)
    assert asked[0].cancelled(), "at once"
    asked += [ask(tokenizing, slow, name) for name in ("b1", "b2", "c1")]
    await asyncio.sleep(0)  # each is in its line
    asked[2].cancel()
    await asyncio.wait(asked[2:3])
    slow.end(4)
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*asked)
    await asyncio.wait(asked)
    assert slow.began[:2] == ["a1", "c1"], "what is cancelled before it began does not begin"
    assert sorted(slow.began[2:]) == ["a2", "b2"]
    asked.clear()  # a cancelled task has its frames
    assert not tokenizing._locks


async def test_who_hangs_up_on_one_that_fails_leaves_no_word_of_it() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    tokenizing, slow = Tokenizing(), Slow(fails=True)
    asked = [ask(tokenizing, slow, "a1")]
    await until(lambda: slow.began == ["a1"])
    asked[0].cancel()
    await asyncio.wait(asked)
    slow.end()
    asked.clear()
    await until(lambda: not tokenizing._locks)
    gc.collect()
    assert not told, "its words may be the prompt's"


async def test_one_that_fails_lets_the_next_in() -> None:
    tokenizing, slow = Tokenizing(), Slow()
    prompt = Prompt(messages=[TURN | {"content": "long " * 1000}])
    for _ in range(2):
        with pytest.raises(AttributeError):
            await tokenizing.prompt_ids(prompt, slow, "a")  # type: ignore[arg-type]
    assert not tokenizing._locks
