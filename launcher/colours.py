"""Prints a generation as it streams, each token in the colour of how it came."""

from __future__ import annotations

import re
from pathlib import Path

from paceline import Chunk
from paceline.cli.render import visible
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer

STYLES = {"accepted": "green", "recovered": "yellow", "bonus": "cyan"}
MEANINGS = {
    "accepted": "drafted, confirmed by the target",
    "recovered": "the target's own, where it disagreed",
    "bonus": "the target's own, after a draft that was right to its end",
}
TURN = re.compile(r"<\|(user|assistant)\|>")
SPECIAL = re.compile(r"<\|\w+\|>")
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def legend() -> Text:
    """Return what the colours mean, a line each."""
    lines = [
        Text.assemble("  ", (f"{name:<10}", STYLES[name]), meaning)
        for name, meaning in MEANINGS.items()
    ]
    return Text("\n").join(lines)


class ColourPrinter:
    """Prints token by token.

    Decodes by itself, because a chunk's text leaves special tokens out: here the turn markers of
    a chat are shown as turns. Other special tokens stay out.

    Args:
        console: Where to.
        tokenizer: The model's `tokenizer.json`.
    """

    def __init__(self, console: Console, tokenizer: Path) -> None:
        self._console = console
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._ids: list[int] = []
        self._printed = 0

    def __call__(self, chunk: Chunk) -> None:
        """Print what a chunk adds."""
        for token_id, source in zip(chunk.token_ids, chunk.sources, strict=True):
            self._ids.append(token_id)
            text = self._tokenizer.decode(self._ids, skip_special_tokens=False)
            # Half a character waits for the token that completes it, and takes that one's colour.
            if text.endswith(UNFINISHED):
                continue
            self._print(text[self._printed :], STYLES.get(source, ""))
            self._printed = len(text)

    def _print(self, text: str, style: str) -> None:
        turns = SPECIAL.sub("", TURN.sub(lambda match: f"\n{match[1]}: ", text))
        shown = Text(visible(turns, self._console.file), style=style)
        self._console.print(shown, end="", soft_wrap=True)
