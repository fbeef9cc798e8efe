"""The bundled prompts: three domains, written for this bench, in no training data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from paceline import Client

PATH = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class Prompt:
    """One thing to continue."""

    domain: str
    """dialogue, arithmetic or story."""

    chat: bool
    """Whether the text is a user's turn, to be wrapped by the chat template."""

    text: str


def load() -> list[Prompt]:
    """Read the prompts."""
    return [Prompt(**json.loads(line)) for line in PATH.read_text("utf-8").splitlines()]


def encode(prompts: list[Prompt], client: Client) -> list[list[int]]:
    """Turn prompts into ids, once, so that every contender gets the same ones."""
    return [
        client.tokenize(messages=[{"role": "user", "content": prompt.text}])
        if prompt.chat
        else client.tokenize(prompt.text)
        for prompt in prompts
    ]
