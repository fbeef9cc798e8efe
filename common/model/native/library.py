"""The compiled decoder: where it is, and its calls."""

from __future__ import annotations

import ctypes
import struct
import weakref
from array import array
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Array,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_long,
    c_void_p,
)
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.model.native import structures
from common.model.native.memory import address
from common.model.native.structures import Heads, Model, Product, Request, Rolling
from common.model.roll import Adjusting, Drawing

BLOCK_OUTPUTS = 64
"""Outputs of a block of a packed matrix; `BLOCK` of `rows.h`."""

VECTORS = ("avx512", "avx2")
"""What a decoder may have been built for, the widest first."""

_OF_TYPE = {torch.bfloat16: "", torch.float32: "_float32"}
"""What a decoder's name ends with, by the type of its weights; there are none of others."""

_OUT_OF_MEMORY, _OUT_OF_RANGE = 1, 2


class Decoder:
    """Threads, and room for what a pass holds; one thread uses it.

    Args:
        threads: Of a pass, the caller's among them.
        most_threads: Of a large one; 0 for no more than of others.
        dtype: Of weights, and of what they are multiplied with; of bfloat16 weights may be int8.
        tiles: Whether to multiply by the processor's tiles, where it has them.
    """

    def __init__(
        self,
        threads: int,
        most_threads: int = 0,
        *,
        dtype: torch.dtype = torch.bfloat16,
        tiles: bool = True,
    ) -> None:
        self._library = found = _library(dtype)
        self.tiles = tiles and bool(found.decoder_has_tiles())
        """Whether it multiplies by tiles."""
        self.slice_outputs: int = found.decoder_slice()
        """Outputs whose weights lie side by side in a packed matrix."""
        most = max(threads, most_threads)
        self._handle = found.decoder_open(threads, most, tiles, _shared_cache())
        if not self._handle:
            raise MemoryError("no threads to be had for the decoder")
        weakref.finalize(self, found.decoder_close, self._handle)

    def run(self, model: Model, request: Request) -> None:
        """Runs a request: fills the cache, the logits and the states.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        _check(self._library.decoder_run(self._handle, model, request))

    def roll(
        self,
        model: Model,
        request: Request,
        how: Rolling,
        levels: int,
        *,
        slots: int,
        chosen: int,
        behind: int,
    ) -> int:
        """Runs a request, and further batches that follow its wanted rows; see `decoder_roll`.

        Returns:
            How many further ones.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        run = c_long(levels)
        addresses = (slots, chosen, behind, byref(run))
        _check(self._library.decoder_roll(self._handle, model, request, how, *addresses))
        return run.value

    def move(self, model: Model, count: int, sources: int, targets: int) -> None:
        """Copies what the cache holds between slots, given by the addresses of their numbers.

        Raises:
            IndexError: A slot there is not.
        """
        _check(self._library.decoder_move(self._handle, model, count, sources, targets))

    def multiply(self, products: Array[Product], rows: int, x: int, y: int) -> None:
        """Multiplies so many rows for each matrix; float32 rows go to another address."""
        count = len(products)
        _check(self._library.decoder_multiply(self._handle, products, count, rows, x, y))

    def guess(self, heads: Heads, rows: int, states: int, chosen: int, logits: int) -> None:
        """Computes the logits of heads at so many states, given by addresses; see `decoder_guess`.

        Raises:
            IndexError: A chosen token there is not.
        """
        _check(self._library.decoder_guess(self._handle, heads, rows, states, chosen, logits))


def top(logits: Tensor, best: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of rows, and the chance of each.

    Args:
        logits: float32, contiguous. # [..., V]
        best: How many.

    Returns:
        Ids (int64) and probabilities (float32), likeliest first. # [..., best] each
    """
    shape, found = (*logits.shape[:-1], best), _library()
    ids, chances = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
    size = logits.shape[-1]
    rows = logits.numel() // size
    found.decoder_top(logits.data_ptr(), rows, size, best, ids.data_ptr(), chances.data_ptr())
    return ids, chances


_DRAWING = struct.Struct("=QqqdddQ")
"""`Drawing` of `warp.h`."""


def packed(drawings: Sequence[Drawing], levels: int = 0) -> tuple[bytes, object]:
    """Drawings as compiled code reads them, and what has to be kept as long as it does.

    Args:
        drawings: They.
        levels: How often rows may go on with a token that is drawn.
    """
    kept: list[object] = []
    lines = []
    for *how, adjusting in drawings:
        at = 0
        if adjusting is not None:
            structure, path = _adjusting(adjusting, levels)
            kept += [adjusting, structure, path]
            at = addressof(structure)
        lines.append(_DRAWING.pack(*how, at))
    return b"".join(lines), kept


def _adjusting(how: Adjusting, levels: int) -> tuple[structures.Adjusting, object]:
    """What changes logits as compiled code reads it, and the path, with room for further ids."""
    ids, biases, penalty, seen, steps = how
    path = array("q", (*steps, *[0] * (levels + 1)))
    mask = (None, 0) if seen is None else (seen.data_ptr(), len(seen))
    added = (ids.data_ptr(), biases.data_ptr(), len(ids))
    structure = structures.Adjusting(*added, *mask, path.buffer_info()[0], len(steps), penalty)
    return structure, path


def draw(logits: Tensor, drawings: Sequence[Drawing], best: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws a token for each row, as `common.model.sampling` says which.

    Args:
        logits: float32 on the CPU, contiguous; not changed. # [N, V]
        drawings: How, one a row; at least one.
        best: How many of the best tokens to tell of each row.

    Returns:
        Ids, the choice first, -1 where no more survive the warpers; the first where bits that this
        does not have in common with torch would decide, as of the two best scores if they are
        nearly equal: so two are to be told at least. And their scores. # [N, best] each
    """
    size, rows = logits.shape[1], len(drawings)
    ids, scores = np.empty((rows, best), dtype=np.int64), np.empty((rows, best))
    room = np.empty(2 * size, dtype=np.float32)
    how, _kept = packed(drawings)
    written = (address(ids), address(scores), address(room))
    _library().decoder_draw(logits.data_ptr(), rows, size, how, best, *written)
    return ids, scores


def survivors(logits: Tensor, drawings: Sequence[Drawing]) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens may be drawn, and their scaled logits, as `common.model.warpers` says.

    Args:
        logits: float32 on the CPU, contiguous; not changed. # [N, V]
        drawings: How, one a row; at least one, and none without a temperature.

    Returns:
        Scaled logits, -inf of tokens that are cut, and whether a row of them is sure: as `draw`
        says. # [N, V], [N]
    """
    size, rows = logits.shape[1], len(drawings)
    scaled, sure = np.empty((rows, size), dtype=np.float32), np.empty(rows, dtype=np.bool_)
    room, ids = np.empty(3 * size, dtype=np.float32), np.empty(size, dtype=np.int64)
    how, _kept = packed(drawings)
    written = (address(scaled), address(sure), address(room), address(ids))
    _library().decoder_survivors(logits.data_ptr(), rows, size, how, *written)
    return scaled, sure


def instructions(dtype: torch.dtype = torch.bfloat16) -> str:
    """What the decoder of a type computes with: amx, avx512 or avx2, of which each sums in an order
    of its own. Empty where it was not built, or this processor cannot run it."""
    used = build(dtype)
    if used is None:
        return ""
    vectors, library = used
    return "amx" if _has_tiles(library) else vectors


@cache
def _has_tiles(library: ctypes.CDLL) -> bool:
    """Asked once: it asks the processor, for which a virtual machine has to be left."""
    return bool(library.decoder_has_tiles())


def _shared_cache() -> int:
    """Bytes of the third cache, which the first processor shares with some others; 0 where Linux
    does not tell. (The C library tells of all of a machine's together.)"""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        return 0


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("no memory for a batch of this size")
    if status == _OUT_OF_RANGE:
        raise IndexError("an id, position, slot or wanted row out of range")


@cache
def build(dtype: torch.dtype = torch.bfloat16) -> tuple[str, ctypes.CDLL] | None:
    """The widest vectors that a decoder was built for and this processor has, and that decoder."""
    built = ((vectors, opened(vectors, dtype)) for vectors in VECTORS)
    return next(((vectors, library) for vectors, library in built if library), None)


def opened(vectors: str, dtype: torch.dtype = torch.bfloat16) -> ctypes.CDLL | None:
    """The decoder for such vectors, where it was built and this processor can run it."""
    if dtype not in _OF_TYPE:
        return None
    spec = find_spec(f"common.model.native._{vectors}{_OF_TYPE[dtype]}")
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(spec.origin)
    return _declared(library) if library.decoder_supported() else None


def _library(dtype: torch.dtype = torch.bfloat16) -> ctypes.CDLL:
    used = build(dtype)
    assert used is not None
    return used[1]


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """A decoder whose calls know what they take."""
    found.decoder_has_tiles.argtypes, found.decoder_has_tiles.restype = [], c_int
    found.decoder_slice.argtypes, found.decoder_slice.restype = [], c_int
    found.decoder_open.argtypes = [c_int, c_int, c_int, c_int64]
    found.decoder_open.restype = c_void_p
    found.decoder_close.argtypes, found.decoder_close.restype = [c_void_p], None
    found.decoder_run.argtypes = [c_void_p, POINTER(Model), POINTER(Request)]
    found.decoder_run.restype = c_int
    both = (POINTER(Model), POINTER(Request))
    places = (c_void_p, c_void_p, c_void_p)
    found.decoder_roll.argtypes = [c_void_p, *both, POINTER(Rolling), *places, POINTER(c_long)]
    found.decoder_roll.restype = c_int
    found.decoder_top.argtypes = [c_void_p, c_long, c_long, c_long, c_void_p, c_void_p]
    found.decoder_top.restype = None
    found.decoder_draw.argtypes = [c_void_p, c_long, c_long, c_char_p, c_long, *places]
    found.decoder_draw.restype = None
    found.decoder_survivors.argtypes = [c_void_p, c_long, c_long, c_char_p, *places, c_void_p]
    found.decoder_survivors.restype = None
    found.decoder_move.argtypes = [c_void_p, POINTER(Model), c_long, c_void_p, c_void_p]
    found.decoder_move.restype = c_int
    matrices = POINTER(Product)
    found.decoder_multiply.argtypes = [c_void_p, matrices, c_long, c_long, c_void_p, c_void_p]
    found.decoder_multiply.restype = c_int
    found.decoder_guess.argtypes = [c_void_p, POINTER(Heads), c_long, *places]
    found.decoder_guess.restype = c_int
    return found
