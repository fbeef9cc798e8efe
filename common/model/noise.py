"""Keyed Gumbel noise: a pure function of (seed, position, token id).

Counter-based (Philox4x32-10), so any value can be computed alone, in any order, and has the
same bits. Another device has the same words; their logarithms may differ there by a rounding.
What the noise is added to is `common.model.sampling`'s business.

One Philox block holds four 32-bit words and serves four neighbouring token ids:

    key      seed low, seed high
    counter  id // 4, position low, position high, 0
    word     id % 4

Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 4
_KEPT_POSITIONS, _KEPT_NUMBERS = 8, 32_768
"""Noise on the CPU is computed and kept for so many positions at once, if it is no more than so
many numbers."""

Array: TypeAlias = NDArray[np.int64]
Words: TypeAlias = Any
"""32-bit words in int64, as a numpy array or as a torch tensor: the same operators."""


def gumbel(seeds: Sequence[int], positions: Sequence[int], ids: Tensor) -> Tensor:
    """Noise of chosen token ids; few, so computed on the CPU wherever they are.

    Args:
        seeds: One 64-bit seed a row.
        positions: Absolute position of the token being chosen, one a row.
        ids: Token ids, int64. # [G, M]

    Returns:
        Standard Gumbel noise, float64, on the device of ids. # [G, M]
    """
    assert ids.ndim == 2
    assert len(seeds) == len(positions) == ids.shape[0]
    tokens = ids.cpu().numpy()
    even, odd = philox(*_counters(seeds, positions, tokens >> 2))
    words = np.choose(tokens & 3, (even[0], odd[0], even[1], odd[1]))
    return _to_gumbel(torch.from_numpy(words)).to(ids.device)


def gumbel_rows(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device | str
) -> Tensor:
    """Noise of every token id: the values of `gumbel`, at a quarter of its work.

    Args:
        seeds: One 64-bit seed a row.
        positions: Absolute position of the token being chosen, one a row.
        vocab_size: Number of token ids.
        device: Where to compute.

    Returns:
        Standard Gumbel noise, float64. # [G, V]
    """
    if torch.device(device).type == "cpu" and vocab_size <= _KEPT_NUMBERS and len(seeds):
        return torch.stack([*map(_kept_row, seeds, positions, repeat(vocab_size))])
    return _rows(seeds, positions, vocab_size, device)


def gumbel_of(
    ids: Sequence[Array], seeds: Sequence[int], positions: Sequence[int], vocab_size: int
) -> list[NDArray[np.float64]]:
    """Noise of some ids of each row, on the CPU.

    Args:
        ids: Token ids of each row, any number of them.
        seeds: One 64-bit seed a row.
        positions: Absolute position of the token being chosen, one a row.
        vocab_size: Number of token ids there are.

    Returns:
        Standard Gumbel noise of each row's ids.
    """
    if len(ids) == 1 and vocab_size <= _KEPT_NUMBERS:  # of several rows few ids are cheaper
        return [_kept_row(seeds[0], positions[0], vocab_size).numpy()[ids[0]]]
    padded = np.zeros((len(ids), max(map(len, ids))), dtype=np.int64)
    for line, tokens in zip(padded, ids, strict=True):
        line[: len(tokens)] = tokens
    noise = gumbel(seeds, positions, torch.from_numpy(padded)).numpy()
    return [line[: len(tokens)] for line, tokens in zip(noise, ids, strict=True)]


def _kept_row(seed: int, position: int, vocab_size: int) -> Tensor:
    """Noise of one position; not to be changed. # [V]"""
    count = min(_KEPT_POSITIONS, _KEPT_NUMBERS // vocab_size)
    return _kept(seed, position // count, count, vocab_size)[position % count]


@lru_cache(maxsize=256)
def _kept(seed: int, block: int, count: int, vocab_size: int) -> Tensor:
    """Noise of a stretch of positions. # [count, V]

    Few rows cost what their calls cost, and the same are asked for again: by every branch of a
    tree, and by the next round where a draft was wrong.
    """
    return _rows([seed] * count, range(block * count, (block + 1) * count), vocab_size, "cpu")


def _rows(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device | str
) -> Tensor:
    """Computes `gumbel_rows`."""
    blocks = np.arange(-(-vocab_size // _LANES))[None].repeat(len(seeds), axis=0)
    counters = _counters(seeds, positions, blocks)
    if torch.device(device).type == "cpu":
        # numpy's overhead an operation is half of torch's, and the arrays are small.
        even, odd = map(torch.from_numpy, philox(*counters))
    else:
        even, odd = philox(*(torch.from_numpy(words).to(device) for words in counters))
    words = torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1)  # [G, blocks, 4]
    return _to_gumbel(words.flatten(1)[:, :vocab_size])


def uniforms(seeds: Sequence[int], positions: Sequence[int], count: int) -> NDArray[np.float64]:
    """Uniform numbers of (0, 1) that are independent of all noise: another stream of counters.

    Args:
        seeds: One 64-bit seed a row.
        positions: Absolute position of the token being chosen, one a row.
        count: How many a row, at least 1.

    Returns:
        Odd multiples of 2^-33. # [G, count]
    """
    blocks = np.arange(-(-count // _LANES))[None].repeat(len(seeds), axis=0)
    even, odd, key = _counters(seeds, positions, blocks)
    odd[1] = 1  # the fourth word of a counter; noise has 0 there
    first, second = philox(even, odd, key)
    words = np.stack((first[0], second[0], first[1], second[1]), axis=-1)  # [G, blocks, 4]
    uniform: NDArray[np.float64] = (words.reshape(len(seeds), -1)[:, :count] + 0.5) * 2.0**-32
    return uniform


def philox(even: Words, odd: Words, key: Words) -> tuple[Words, Words]:
    """Philox4x32-10 on many counters at once.

    A counter's words 0 and 2 meet the multipliers, 1 and 3 are xored in, so the two pairs
    are kept apart and each operation serves both words of a pair. int64 products wrap
    modulo 2^64, which leaves all 64 bits of a 32 x 32 product right whatever the sign.

    Args:
        even: Counter words 0 and 2. # [2, G, M]
        odd: Counter words 1 and 3, broadcast to even. # [2, G, 1 or M]
        key: Key words 0 and 1, broadcast to even. # [2, G, 1]

    Returns:
        Output words 0 and 2, output words 1 and 3. # [2, G, M] each
    """
    multipliers, schedule = _constants(key.device if isinstance(key, Tensor) else None)
    for round_key in (key + schedule) & _MASK:
        product = _swap(even * multipliers)
        even = product >> 32
        even ^= odd
        even ^= round_key
        even &= _MASK
        odd = product  # only its low half counts: the masks above drop the high one
    return even, odd & _MASK


def _counters(
    seeds: Sequence[int], positions: Sequence[int], blocks: Array
) -> tuple[Array, Array, Array]:
    """What `philox` takes, for blocks of ids. # [G, M] -> [2, G, M], [2, G, 1], [2, G, 1]"""
    rows = [
        (at >> 32, at & _MASK, 0, seed & _MASK, seed >> 32)
        for seed, at in zip(seeds, positions, strict=True)
    ]
    words = np.array(rows, dtype=np.int64).reshape(-1, 5).T[..., None]  # [5, G, 1]
    even = np.empty((2, *blocks.shape), dtype=np.int64)
    even[0] = blocks
    even[1] = words[0]
    return even, words[1:3], words[3:]


@cache
def _constants(device: torch.device | None) -> tuple[Words, Words]:
    """Multipliers [2, 1, 1] and key increments [10, 2, 1, 1]; numpy's where device is None."""
    multipliers = np.array(_MULTIPLIERS, dtype=np.int64)[:, None, None]
    steps = np.arange(_ROUNDS, dtype=np.int64)[:, None] * np.array(_WEYL, dtype=np.int64)
    schedule = (steps & _MASK)[..., None, None]
    if device is None:
        return multipliers, schedule
    return torch.from_numpy(multipliers).to(device), torch.from_numpy(schedule).to(device)


def _swap(pair: Words) -> Words:
    return pair.flip(0) if isinstance(pair, Tensor) else pair[::-1]


def _to_gumbel(words: Tensor) -> Tensor:
    """Maps words to the midpoints of 2^32 cells of (0, 1), exactly, and those to Gumbel."""
    uniform = words.double().add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()
