"""Prompts become ids on the event loop where they are short, and beside it where they are not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gateway.request import Prompt
from gateway.tokenizing import prompt_ids


class Where:
    """A tokenizer whose ids say which thread it ran in."""

    def encode(self, text: str) -> list[int]:
        return [threading.get_ident()]

    def apply_chat_template(self, messages: Any) -> list[int]:
        return [threading.get_ident()]


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
    (thread,) = await prompt_ids(prompt, Where())  # type: ignore[arg-type]
    assert (thread != threading.get_ident()) == beside
