"""The bundled prompts: four domains, in no training data; see PROMPTS.md for their sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from paceline import Client

from common.tokenizer import Tokenizer

PATH = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One thing to continue: a conversation or a text."""

    domain: str
    """dialogue, arithmetic, story or repeating."""

    source: str
    """Where it is from."""

    messages: tuple[dict[str, str], ...] = ()
    """A conversation, for the chat template; empty where `text` is given."""

    text: str = ""
    """Plain text."""


def load(per_domain: int = 0) -> list[Prompt]:
    """Read the prompts, domain by domain.

    Args:
        per_domain: How many of each domain; 0 takes all.
    """
    prompts = [Prompt(**json.loads(line)) for line in PATH.read_text("utf-8").splitlines()]
    by_domain = [list(group) for _, group in groupby(prompts, lambda prompt: prompt.domain)]
    return [prompt for group in by_domain for prompt in group[: per_domain or None]]


def encode(prompts: list[Prompt], client: Client) -> list[list[int]]:
    """Turn prompts into ids, once, so that every contender gets the same ones."""
    return [
        client.tokenize(messages=prompt.messages)
        if prompt.messages
        else client.tokenize(prompt.text)
        for prompt in prompts
    ]


def ordinary(client: Client) -> tuple[int, ...]:
    """Return the ids that the words of all prompts are made of, without those of a template."""
    every = load()
    texts = [prompt.text for prompt in every]
    texts += [message["content"] for prompt in every for message in prompt.messages]
    return tuple(sorted(set(client.tokenize(" ".join(texts))[1:])))  # the first may be special


def encode_here(prompts: list[Prompt], tokenizer: Tokenizer) -> list[list[int]]:
    """Turn prompts into ids without a deployment."""
    return [
        tokenizer.apply_chat_template(prompt.messages)
        if prompt.messages
        else tokenizer.encode(prompt.text)
        for prompt in prompts
    ]


def tokenizer_of(model: Path) -> Tokenizer:
    """Load a model's tokenizer; end the command where it has none."""
    tokenizer = Tokenizer.load(model)
    if tokenizer is None:
        raise SystemExit(f"error: {model}: no tokenizer.json; the prompts are text")
    return tokenizer
