"""One output while it grows: committed ids in, chunks for the client out.

Joins the detokenizer and the stop strings, and counts what is known of speculation, for the
case that a stop string ends the generation before the verifier could report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

    def add(self, source: int, count: int) -> None:
        """Counts `count` tokens of one source."""
        self.tokens += count
        if source != TokenSource.ACCEPTED:
            self._closed_rounds += count
            self._run = 0
            return
        for position in range(self._run, self._run + count):
            if position == len(self.accepted_per_position):
                self.accepted_per_position.append(0)
            self.accepted_per_position[position] += 1
        self._run += count


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

    def feed(self, ids: Sequence[int], sources: Sequence[int]) -> Iterator[Chunk]:
        """Takes committed tokens and yields a chunk for every run of one source.

        After a stop string nothing more is yielded: the last chunk's ids end with the token
        that completed it.
        """
        start = 0
        while start < len(ids) and self.stop is None:
            source, end = sources[start], start + 1
            while end < len(ids) and sources[end] == source:
                end += 1
            chunk = self._chunk(ids[start:end], source)
            self.tally.add(source, len(chunk.ids))
            yield chunk
            start = end

    def finish(self) -> str:
        """Returns the text still held back; it may complete a stop string as well."""
        if self._detokenizer is None or self.stop is not None:
            return ""
        rest = self._detokenizer.flush()
        if self._scanner is None:
            return rest
        return self._scanner.push(rest) + self._scanner.flush()

    def _chunk(self, ids: Sequence[int], source: int) -> Chunk:
        if self._detokenizer is None:
            return Chunk("", ids, source)
        if self._scanner is None:
            return Chunk(self._detokenizer.push(ids), ids, source)
        text = ""
        for count, id_ in enumerate(ids, start=1):
            text += self._scanner.push(self._detokenizer.push((id_,)))
            if self._scanner.hit is not None:
                return Chunk(text, ids[:count], source)
        return Chunk(text, ids, source)
