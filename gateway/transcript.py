"""One output while it grows: committed ids in, chunks for the client out.

Joins the detokenizer and the stop strings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.errors import InvalidArgument
from gateway.detokenizer import Detokenizer
from gateway.request import Chunk, Resume
from gateway.stop import StopScanner

_REPLAY_IDS = 256


class Transcript:
    """The output of one request.

    Args:
        detokenizer: Makes text of ids; None for models without a tokenizer.
        stops: Stop strings; need a detokenizer.

    Attributes:
        tokens: Ids handed out.
    """

    def __init__(self, detokenizer: Detokenizer | None, stops: Sequence[str]) -> None:
        assert detokenizer is not None or not stops
        self.tokens = 0
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops) if stops else None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the output, if one did."""
        return self._scanner.hit if self._scanner else None

    async def replay(self, resume: Resume) -> None:
        """Takes in what the client has already, to go on as if it had been handed out here.

        Raises:
            InvalidArgument: It reaches beyond a stop string.
        """
        for start in range(0, len(resume.ids), _REPLAY_IDS):
            ids = resume.ids[start : start + _REPLAY_IDS]
            if self.stop is not None or len(self.feed(ids, ids).ids) < len(ids):
                problem = "must not go on after a stop string"
                raise InvalidArgument("resume.token_ids", problem)
            await asyncio.sleep(0)  # others' tokens wait meanwhile

    def feed(self, ids: Sequence[int], sources: Sequence[int]) -> Chunk:
        """Takes committed tokens; after a stop string the chunk ends with its last token."""
        pieces: list[str] = []
        for id_ in ids:
            pieces.append(self._piece(id_))
            if self.stop is not None:
                break
        taken = len(pieces)
        self.tokens += taken
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
        text = self._detokenizer.push(id_)
        return text if self._scanner is None else self._scanner.push(text)
