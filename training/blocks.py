"""Token ids cut into blocks of one length, and the batch of every step.

The batch of step n is a function of the seed and n alone: a run that goes on after a crash sees
what it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from training import corpus, written
from training.encode import Encoder, Ids
from training.errors import DataError

_AT_ONCE = 1000
"""Documents that are encoded at once: until they are packed they take thirty times the memory."""


class Blocks:
    """Blocks in an order drawn anew for each epoch.

    Args:
        ids: All blocks. # [blocks, T]
        seed: Decides the order.
    """

    def __init__(self, ids: Tensor, *, seed: int) -> None:
        assert ids.ndim == 2
        assert len(ids) > 0
        self.ids = ids
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, step: int, size: int) -> Tensor:
        """The blocks of a step. # [size, T]"""
        return self.at(range(step * size, (step + 1) * size))

    def at(self, places: range) -> Tensor:
        """Those at some places of all epochs in a row. # [places, T]"""
        return self.ids[[int(self._order(p // len(self))[p % len(self)]) for p in places]]

    def split(self, count: int) -> tuple[Blocks, Blocks]:
        """Sets `count` blocks aside; returns the rest and those."""
        order = self._draw(-1)
        rest, aside = self.ids[order[count:]], self.ids[order[:count]]
        return Blocks(rest, seed=self._seed), Blocks(aside, seed=self._seed)

    def _draw(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch + 1)
        return torch.randperm(len(self), generator=generator)


class Mixture:
    """Two kinds of blocks in a fixed proportion.

    Args:
        first: One kind.
        second: The other.
        share: Part of the blocks that is of the second kind: of each batch as near as whole
            blocks come, of all batches in a row to a block.
    """

    def __init__(self, first: Blocks, second: Blocks, *, share: float) -> None:
        self._first, self._second, self._share = first, second, share

    def batch(self, step: int, size: int) -> Tensor:
        """The blocks of a step. # [size, T]"""
        before, after = step * size, (step + 1) * size
        start, end = round(before * self._share), round(after * self._share)
        parts = [
            (self._first, range(before - start, after - end)),
            (self._second, range(start, end)),
        ]
        return torch.cat([blocks.at(places) for blocks, places in parts if places])


def of_corpora(paths: Sequence[Path], encoder: Encoder, block_tokens: int, seed: int) -> Blocks:
    """Reads corpora.

    Raises:
        DataError: A file that cannot be used, or is shorter than a block.
    """
    packed = []
    for path in paths:
        documents = corpus.read([path])
        parts = (documents[i : i + _AT_ONCE] for i in range(0, len(documents), _AT_ONCE))
        ids = chain.from_iterable(map(encoder.documents, parts))
        packed.append(_pack(path, ids, block_tokens, seed))
    return Blocks(torch.cat(packed), seed=seed)


def of_written(paths: Sequence[Path], vocab_size: int, block_tokens: int, seed: int) -> Blocks:
    """Reads files of what a target of so many ids wrote.

    Raises:
        DataError: A file that cannot be used, or is shorter than a block.
    """
    packed = []
    for path in paths:
        texts = [text.ids for text in written.read(path, vocab_size)]
        packed.append(_pack(path, texts, block_tokens, seed))
    return Blocks(torch.cat(packed), seed=seed)


def _pack(path: Path, documents: Iterable[Ids], block_tokens: int, seed: int) -> Tensor:
    """Strings documents together in random order and cuts the string. # [blocks, T]"""
    order = [torch.tensor(document, dtype=torch.int32) for document in documents]
    random.Random(seed).shuffle(order)
    ids = torch.cat(order)
    if len(ids) < block_tokens:
        raise DataError(f"{path}: {len(ids)} tokens, shorter than a block of {block_tokens}")
    return ids[: len(ids) // block_tokens * block_tokens].view(-1, block_tokens)
