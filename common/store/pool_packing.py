"""Stretches of text as records for the store: all their n-grams, sorted and counted at once.

The work is numpy's, which lets other threads run meanwhile: a tenth of the time that counting
tuples takes, and the engine's thread waits for little of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_HITS = 255
"""Occurrences one record can hold."""


@dataclass(frozen=True)
class PackedSet:
    """N-grams with one first token."""

    first: int
    """That token."""
    records: bytes
    """For each n-gram a byte of occurrences, and its other tokens with 4 bytes each."""
    ngrams: int
    """Occurrences of all of them."""


def pack(
    stretches: Sequence[Sequence[int]], ngram_tokens: int, most_records: int
) -> Iterator[PackedSet]:
    """Packs the n-grams of texts.

    Args:
        stretches: Tokens; no n-gram reaches from one into the next.
        ngram_tokens: Tokens of an n-gram.
        most_records: Most different n-grams in one of the sets returned; a first token that has
            more gets several.

    Yields:
        Sets, those of one first token next to each other.
    """
    ngrams = _ngrams(stretches, ngram_tokens)
    if not len(ngrams):
        return
    ngrams = ngrams[np.lexsort(ngrams.T[::-1])]
    differs = (ngrams[1:] != ngrams[:-1]).any(axis=1)
    starts = np.concatenate(([0], np.flatnonzero(differs) + 1))
    ends = np.append(starts[1:], len(ngrams))
    ngrams = ngrams[starts]
    records = _records(ngrams, ends - starts)
    size = records.shape[1]
    packed, occurrences = records.tobytes(), ends.tolist()
    before = 0
    for first, begin, end in _slices(ngrams[:, 0], most_records):
        yield PackedSet(first, packed[begin * size : end * size], occurrences[end - 1] - before)
        before = occurrences[end - 1]


def count(tokens: int, ngram_tokens: int) -> int:
    """N-grams in a stretch of so many tokens."""
    return max(tokens - ngram_tokens + 1, 0)


def _ngrams(stretches: Sequence[Sequence[int]], tokens: int) -> NDArray[np.uint32]:
    """All n-grams, `[ngrams, tokens]`."""
    lengths = np.fromiter(map(len, stretches), np.int64, len(stretches))
    ids = np.fromiter((token for each in stretches for token in each), "<u4", lengths.sum())
    if len(ids) < tokens:
        return np.empty((0, tokens), np.uint32)
    ends = np.repeat(np.cumsum(lengths), lengths)  # of each token's stretch
    windows = np.lib.stride_tricks.sliding_window_view(ids, tokens)
    whole = np.arange(len(windows)) + tokens <= ends[: len(windows)]
    found: NDArray[np.uint32] = windows[whole]
    return found


def _records(ngrams: NDArray[np.uint32], hits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Occurrences and tails, `[ngrams, bytes]`."""
    tails = np.ascontiguousarray(ngrams[:, 1:]).view(np.uint8)
    counts = np.minimum(hits, MOST_HITS).astype(np.uint8)
    return np.concatenate((counts[:, None], tails), axis=1)


def _slices(firsts: NDArray[np.uint32], most: int) -> Iterator[tuple[int, int, int]]:
    """Runs of equal first tokens, cut to a length: token, begin and end."""
    cuts = (np.flatnonzero(firsts[1:] != firsts[:-1]) + 1).tolist()
    begin = 0
    for end in [*cuts, len(firsts)]:
        for at in range(begin, end, most):
            yield int(firsts[begin]), at, min(at + most, end)
        begin = end
