"""Stop strings in a stream of text.

Text comes in pieces that have nothing to do with stop strings. The scanner hands out all that
cannot become part of one any more, and no more than that. Which string wins does not depend on
the pieces: the one that is complete first, of several the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Watches one output.

    Args:
        stops: The stop strings, none empty.

    Attributes:
        hit: The stop string that was found, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """Takes the next piece.

        Returns:
            Text that is certain to stand before any stop string. After a hit: what stood before
            it and was not handed out yet.
        """
        assert self.hit is None, "nothing follows a stop string"
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = min((_opening(text, stop) for stop in self._stops), default=len(text))
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Returns what was held back, at the end of an output without a hit."""
        rest, self._held = self._held, ""
        return rest


def _opening(text: str, stop: str) -> int:
    """Returns where the longest end of `text` starts that is a beginning of `stop`."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)
