"""One output while it grows: committed ids in, chunks for the client out.

Joins the detokenizer and the stop strings, and counts what is known of speculation, for the
case that a stop string ends the generation before the verifier could report.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.detokenizer import Detokenizer
from gateway.request import Chunk, TokenSource
from gateway.stop import StopScanner


class Tally:
    """What the sources of committed tokens tell about speculation.

    Every target pass ends in a recovered or a bonus token, so these count the rounds; the draft
    tokens that were checked in vain leave no trace here.

    Attributes:
        tokens: Tokens committed.
        accepted_per_position: Rounds in which draft token i was committed.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.accepted_per_position: list[int] = []
        self._closed_rounds = 0
        self._run = 0

    @property
    def accepted(self) -> int:
        """Draft tokens committed."""
        return sum(self.accepted_per_position)

    @property
    def rounds(self) -> int:
        """Target passes, one cut short by a stop string included."""
        return self._closed_rounds + (self._run > 0)

    def add(self, source: int) -> None:
        """Counts a token."""
        self.tokens += 1
        if source != TokenSource.ACCEPTED:
            self._closed_rounds += 1
            self._run = 0
            return
        if self._run == len(self.accepted_per_position):
            self.accepted_per_position.append(0)
        self.accepted_per_position[self._run] += 1
        self._run += 1


class Transcript:
    """The output of one request.

    Args:
        detokenizer: Makes text of ids; None for models without a tokenizer.
        stops: Stop strings; need a detokenizer.

    Attributes:
        tally: Counts of what was handed out.
    """

    def __init__(self, detokenizer: Detokenizer | None, stops: Sequence[str]) -> None:
        assert detokenizer is not None or not stops
        self.tally = Tally()
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops) if stops else None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the output, if one did."""
        return self._scanner.hit if self._scanner else None

    def feed(self, ids: Sequence[int], sources: Sequence[int]) -> Chunk:
        """Takes committed tokens; after a stop string the chunk ends with its last token."""
        pieces: list[str] = []
        for id_, source in zip(ids, sources, strict=True):
            self.tally.add(source)
            pieces.append(self._piece(id_))
            if self.stop is not None:
                break
        taken = len(pieces)
        return Chunk("".join(pieces), ids[:taken], sources[:taken], [len(p) for p in pieces])

    def finish(self) -> str:
        """Returns the text still held back; it may complete a stop string as well."""
        if self._detokenizer is None or self.stop is not None:
            return ""
        rest = self._detokenizer.flush()
        if self._scanner is None:
            return rest
        return self._scanner.push(rest) + self._scanner.flush()

    def _piece(self, id_: int) -> str:
        """The text that one more token makes certain."""
        if self._detokenizer is None:
            return ""
        text = self._detokenizer.push((id_,))
        return text if self._scanner is None else self._scanner.push(text)
