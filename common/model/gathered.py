"""Keys and values of texts, gathered from a layer of the cache, and what rows see of them.

All rows of a text are multiplied with its keys together, so that no depth copies any. Texts are
drafted behind in groups, so that memory holds what is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.model.cuda.memory import gathered_bytes
from common.model.kv_cache import ZERO_SLOT
from common.model.transfer import on_device

MOST_BYTES = 256 << 20
"""Keys and values that are gathered at once, where a device has no room for more; a single text may
have more."""


def held_type(cache: Tensor) -> torch.dtype:
    """What keys and values are gathered in: on a CPU what it multiplies fastest."""
    return torch.float32 if cache.device.type == "cpu" else cache.dtype


def groups(sizes: Sequence[int], device: torch.device) -> list[list[int]]:
    """Texts to gather together: of about one length, as each takes what the longest does.

    Args:
        sizes: Bytes that each text takes.
        device: Where they are gathered.
    """
    most_bytes = MOST_BYTES
    if len(sizes) * max(sizes) > most_bytes:  # else nobody needs to ask
        most_bytes = gathered_bytes(device, most_bytes)
    found: list[list[int]] = []
    for text in sorted(range(len(sizes)), key=sizes.__getitem__):
        if found and (len(found[-1]) + 1) * sizes[text] <= most_bytes:
            found[-1].append(text)
        else:
            found.append([text])
    return found


class Gathered:
    """Keys and values of texts.

    Args:
        cache: Of one layer. # [slots, kv heads, D + V]
        texts: Slots of each one's positions. # [S]
        dtype: To hold them in.
        key_size: D, where V of values is another.
    """

    def __init__(
        self,
        cache: Tensor,
        texts: Sequence[np.ndarray],
        dtype: torch.dtype,
        *,
        key_size: int | None = None,
    ) -> None:
        key_size = key_size or cache.shape[-1] // 2
        self._parts = [key_size, cache.shape[-1] - key_size]
        width, heads, device = max(map(len, texts)), cache.shape[1], cache.device
        lines = np.full((len(texts), width), ZERO_SLOT, dtype=np.int32)  # half as much to copy
        for line, text in zip(lines, texts, strict=True):
            line[: len(text)] = text
        slots = on_device(lines, device, torch.int32).long()[:, None]  # [S, 1, width]
        self._absent: Tensor | None = None  # [S, 1, width]: what no text has there, or was shown
        if (lines == ZERO_SLOT).any():
            self._absent = slots == ZERO_SLOT
        each = slots * heads + torch.arange(heads, device=device)[:, None]  # [S, kv heads, width]
        held = cache.flatten(0, 1).index_select(0, each.flatten()).to(dtype)
        self._held = held.view(*each.shape, -1)  # [S, kv heads, width, D + V]
        self._lines = {text: text for text in range(len(texts))}  # where each is of those held
        self._of: Sequence[int] = ()  # whose rows attended last, as a depth has several layers
        self._most = 0  # of one text
        self._at: Tensor | None = None  # see `_places`

    def attended(self, queries: Tensor, of: Sequence[int], aside: Tensor) -> Tensor:
        """What rows see of their texts, and beside those.

        Args:
            queries: Scaled, float32. # [R, heads, D]
            of: Each one's text, rising; texts without any have none from here on. # [R]
            aside: Keys and values that each sees besides, float32. # [R, n, kv heads, D + V]

        Returns:
            Float32. # [R, heads * V]
        """
        if of is not self._of:
            self._drop(of)
            self._of, self._most = of, max(Counter(of).values())
            self._at = self._places(of, self._most, queries.device)
        most, places = self._most, self._at
        texts, heads, width, _ = self._held.shape
        shape = (texts, heads, most, -1)
        keys, values = self._held.flatten(0, 1).split(self._parts, dim=-1)
        own = self._laid(aside, places, most).permute(0, 3, 1, 2, 4)
        own_keys, own_values = own.split(self._parts, dim=-1)
        grouped = self._laid(queries, places, most).unflatten(2, (heads, -1)).transpose(1, 2)
        scores = _product(grouped.reshape(len(keys), -1, keys.shape[-1]).to(keys.dtype), keys.mT)
        if self._absent is not None:
            scores.view(texts, -1, width).masked_fill_(self._absent, -torch.inf)
        beside = grouped @ own_keys.mT  # [S, kv heads, most, queries, n]
        chances = torch.cat((scores.view(*shape, width), beside), dim=-1).softmax(-1)
        seen = chances[..., :width].reshape(*scores.shape).to(values.dtype)
        attended: Tensor = _product(seen, values).view(*shape, values.shape[-1])
        attended = attended + chances[..., width:] @ own_values
        attended = attended.transpose(1, 2).reshape(texts * most, -1)
        return attended if places is None else attended.index_select(0, places)

    def _drop(self, of: Sequence[int]) -> None:
        """Forgets texts that have no rows any more, once they are half of them."""
        left = [*dict.fromkeys(of)]
        if 2 * len(left) > len(self._lines):
            return
        kept = on_device([self._lines[text] for text in left], self._held.device)
        self._held = self._held.index_select(0, kept)
        if self._absent is not None:
            self._absent = self._absent.index_select(0, kept)
        self._lines = {text: line for line, text in enumerate(left)}

    def _places(self, of: Sequence[int], most: int, device: torch.device) -> Tensor | None:
        """Of rows among `most` of each text; None where they are all of those."""
        if len(of) == most * len(self._lines):
            return None
        firsts = {text: row for row, text in reversed([*enumerate(of)])}
        places = [self._lines[text] * most + row - firsts[text] for row, text in enumerate(of)]
        return on_device(places, device)

    def _laid(self, rows: Tensor, places: Tensor | None, most: int) -> Tensor:
        """Rows by text, zeros where a text has fewer. # [R, ...] -> [S, most, ...]"""
        if places is not None:
            laid = rows.new_zeros(len(self._lines) * most, *rows.shape[1:])
            rows = laid.index_copy_(0, places, rows)
        return rows.view(len(self._lines), most, *rows.shape[1:])


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Float32, as it is summed. # [N, m, k], [N, k, n] -> [N, m, n]"""
    if one.dtype == torch.float32:
        return torch.bmm(one, other)
    return torch.bmm(one, other, out_dtype=torch.float32)
