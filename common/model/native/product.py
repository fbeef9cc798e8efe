"""Matrices packed for the compiled decoder's products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.native.library import BLOCK_OUTPUTS, Decoder, Product, available


class NativeProduct:
    """A matrix ready to be multiplied by.

    Args:
        decoder: Whose threads multiply.
        weight: bfloat16; an even number of inputs. `[out, in]`
        bias: `[out]` or None.
    """

    def __init__(self, decoder: Decoder, weight: Tensor, bias: Tensor | None) -> None:
        self._decoder = decoder
        self._matrix = packed(weight)
        self._bias = None if bias is None else bias.float().contiguous()
        self._outputs = len(weight)
        self._product = Product(
            self._matrix.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            *weight.shape,
        )

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether it works here, with such a matrix."""
        even_bf16 = weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
        return even_bf16 and weight.device.type == "cpu" and available()

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b` of bfloat16 `[N, in]`, in float32."""
        x = x.contiguous()
        y = torch.empty(len(x), self._outputs)
        self._decoder.multiply(self._product, len(x), x.data_ptr(), y.data_ptr())
        return y


def packed(weight: Tensor) -> Tensor:
    """A matrix as the decoder reads it.

    Args:
        weight: bfloat16; an even number of inputs. `[out, in]`

    Returns:
        `[blocks, in / 2, 64, 2]`; missing outputs are 0.
    """
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % BLOCK_OUTPUTS))
    blocks = padded.view(-1, BLOCK_OUTPUTS, inputs // 2, 2)
    return blocks.transpose(1, 2).contiguous()
