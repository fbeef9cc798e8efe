"""Medusa heads for the compiled decoder."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from common.model.native.library import Decoder, instructions
from common.model.native.memory import Rooms
from common.model.native.product import NativeProducts
from common.model.native.structures import Heads


class NativeMedusa:
    """Heads whose logits are one call, of weights rounded to int8.

    Args:
        decoder: Whose threads compute.
        first: The first blocks of all heads, bfloat16 `[K d, in]`, and their biases, `[K d]`.
        later: Those after it, `[layers, K, d, d]` and `[layers, K, d]`; of no layer or some.
        output: `[K, V, d]`, or `[1, V, d]` where heads share one.
        vectors: Of the tokens that heads see, bfloat16 `[tokens, d]`, and what each is multiplied
            by, float32 `[tokens]`; None where they see none.
    """

    def __init__(
        self,
        decoder: Decoder,
        first: tuple[Tensor, Tensor],
        later: tuple[Tensor, Tensor],
        output: Tensor,
        vectors: tuple[Tensor, Tensor] | None,
    ) -> None:
        self._decoder = decoder
        weights, biases = later
        layers, self._count, self._size = biases.shape
        self._outputs = output.shape[1]
        self._rooms = Rooms(self._outputs, 0, torch.float32)
        self._kept = [
            NativeProducts(decoder, weight, bias, quantize=True)
            for weight, bias in (
                (first[0][None], first[1][None]),
                (weights.flatten(0, 1), biases.flatten(0, 1)),
                (output, None),
            )
        ]
        self._vectors = vectors and (vectors[0].contiguous(), vectors[1].contiguous())
        self._heads = Heads(
            *(products.products for products in self._kept),
            *(tensor.data_ptr() for tensor in self._vectors or ()),
        )
        self._heads.count, self._heads.later, self._heads.size = self._count, layers, self._size
        self._heads.tokens = len(self._vectors[0]) if self._vectors else 0
        self._heads.shared = len(output) < self._count

    @staticmethod
    def work(dtype: torch.dtype) -> bool:
        """Whether there are such heads here for states of a type: int8 weights want bfloat16."""
        return dtype == torch.bfloat16 and bool(instructions(dtype))

    def __call__(self, states: Tensor, chosen: Sequence[int]) -> Tensor:
        """All heads' logits.

        Args:
            states: bfloat16. # [N, d]
            chosen: The tokens that were chosen from them. # [N]

        Returns:
            Float32. # [K, N, V]

        Raises:
            IndexError: A token there is not.
        """
        states = states.contiguous()
        assert states.shape == (len(chosen), self._size)
        assert states.dtype == torch.bfloat16
        room, written = self._rooms.take(self._count * len(chosen))
        tokens = array("q", chosen)
        places = states.data_ptr(), tokens.buffer_info()[0], room.logits_at
        self._decoder.guess(self._heads, len(chosen), *places)
        return written.logits.view(self._count, len(chosen), self._outputs)
