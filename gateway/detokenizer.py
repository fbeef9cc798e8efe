"""Token ids to text while they arrive, never half a character.

A token is not a piece of text: a character may be spread over several byte tokens, and some
tokenizers write a word's leading space only where something stands before it. So a window of
recent ids is decoded as a whole and only what it adds is handed out; what ends in U+FFFD may
be a character still on its way and is held back (the method of text-generation-inference).
Where text is nothing but the bytes of each token, as most models' tokenizers have it, a token of
whole characters is looked up, and only others make a window.

The pieces together equal `decode` of all ids, with two exceptions, in which what was handed out
stays as it was. A sentencepiece byte-fallback decoder rewrites a whole run of byte tokens to
U+FFFD when one of them turns out invalid, also characters of the run that were complete before.
And a decoder may replace text that goes across tokens, once they are fused.
"""

from __future__ import annotations

from common.tokenizer import Tokenizer

# From this length on, a window that may be cut is: decoding stays a few microseconds.
_CUT_IDS = 16

# A run of ids that never makes a whole character is not text; it is let go at this length.
_MAX_IDS = 512

_UNFINISHED = "\ufffd"


class Detokenizer:
    """Decodes one output.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._silent = tokenizer.silent_ids
        self._joins_bytes = tokenizer.joins_bytes
        self._window: list[int] = []
        self._sent = 0  # characters of the window's text already handed out
        self._settled = 0  # ids of the window up to the last whole character but one push

    def push(self, id_: int) -> str:
        """Takes the next id and returns the text it makes certain."""
        if self._joins_bytes and not self._window:
            piece = self._tokenizer.piece(id_)
            if _UNFINISHED not in piece:
                return piece
        # Special tokens have no text; a window of nothing else would lose a leading space.
        if id_ in self._silent:
            return ""
        self._window.append(id_)
        text = self._tokenizer.decode(self._window)
        certain = len(text.rstrip(_UNFINISHED))
        if len(self._window) > _MAX_IDS:
            certain = len(text)
        fresh = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if certain == len(text):
            self._cut()
        return fresh

    def flush(self) -> str:
        """Returns what was held back; incomplete characters come as U+FFFD."""
        text = self._tokenizer.decode(self._window) if self._window else ""
        rest, self._sent = text[self._sent :], len(text)
        return rest

    def _cut(self) -> None:
        """Shortens a long window to the ids since the last settled place that has text after it.

        A window has to begin with text: a decoder strips the first token's leading space, and
        what is stripped must be something already handed out. Bytes that are joined need none.
        """
        if self._joins_bytes:
            self._window, self._sent = [], 0
            return
        if len(self._window) < _CUT_IDS:
            self._settled = len(self._window)
            return
        tail = self._window[self._settled :]
        text = self._tokenizer.decode(tail)
        if not text:
            return  # with the next id it has some; else a run of lone spaces is never cut
        if self._settled:
            self._window, self._sent = tail, len(text)
        self._settled = len(self._window)
