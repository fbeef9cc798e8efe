"""Generated text on a terminal, coloured by how its tokens came.

Needs nothing but the standard library, so that other commands can use it too.
"""

from typing import IO, TextIO

from paceline._types import Chunk, Result, TokenSource

RESET = "\x1b[0m"
COLORS: dict[TokenSource, str] = {
    "accepted": "\x1b[32m",  # green
    "recovered": "\x1b[33m",  # yellow
    "bonus": "\x1b[36m",  # cyan
}
# All but the end of a line and the tabulator.
_SPELT = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


class ChunkPrinter:
    """Writes chunks as they come.

    Args:
        out: Where to.
        color: Whether to colour each token's text by how the token came.
    """

    def __init__(self, out: TextIO, *, color: bool) -> None:
        self._out = out
        self._color = color
        self._source: TokenSource = "unspecified"
        self._begun = False  # a line

    def print(self, chunk: Chunk) -> None:
        """Writes the chunk's text at once."""
        for text, source in chunk.pieces():
            # Text that was held back comes without a token: it belongs to the one before.
            if source != "unspecified":
                self._source = source
            if text:
                shown = visible(text, self._out)
                self._out.write(paint(shown, self._source) if self._color else shown)
                self._begun = not text.endswith("\n")
        self._out.flush()

    def end_line(self) -> None:
        """Leaves a line that was begun, on a terminal; elsewhere text stays as it came."""
        if self._begun and self._out.isatty():
            self._out.write("\n")
            self._out.flush()


def visible(text: str, out: IO[str] | None) -> str:
    """Spells out control characters of a model or a service that a terminal would obey.

    Args:
        text: What they wrote.
        out: Where it is going to stand; elsewhere than on a terminal text stays as it came.
    """
    return text.translate(_SPELT) if out is not None and out.isatty() else text


def paint(text: str, source: TokenSource) -> str:
    """Colours text; leaves it as it is where the source has no colour."""
    color = COLORS.get(source)
    return f"{color}{text}{RESET}" if color else text


def legend() -> str:
    """Explains the colours."""
    return " ".join(paint(source, source) for source in COLORS)


def stats_line(result: Result, seconds: float) -> str:
    """Sums up a generation in one line.

    Args:
        result: The generation.
        seconds: Time from the request to the end.
    """
    usage, ran = result.usage, result.speculation
    rate = usage.completion_tokens / seconds if seconds > 0 else 0.0
    parts = [
        f"{usage.completion_tokens} tokens in {seconds:.2f} s",
        f"{rate:.1f} tokens/s",
        f"method {ran.method}",
        f"mean accepted length {ran.mean_accepted_length:.2f}",
    ]
    if ran.drafted_tokens:
        parts.append(f"acceptance rate {ran.acceptance_rate:.0%} ({ran.acceptance})")
    if ran.lossy:
        parts.append("lossy")
    return " · ".join([*parts, f"seed {result.seed}"])
