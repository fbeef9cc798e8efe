"""Matrices packed for the compiled decoder's products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.native.library import BLOCK_OUTPUTS, Decoder, Product, available


class NativeProducts:
    """Matrices of one shape, ready to be multiplied by.

    Args:
        decoder: Whose threads multiply.
        weights: bfloat16, `[K, out, in]`.
        biases: `[K, out]` or None.
    """

    def __init__(self, decoder: Decoder, weights: Tensor, biases: Tensor | None) -> None:
        self._decoder = decoder
        count, self._outputs, inputs = weights.shape
        self._matrices = [packed(weight) for weight in weights]
        self._biases = None if biases is None else biases.float().contiguous()
        self._products = (Product * count)(
            *(
                Product(
                    packed=matrix.data_ptr(),
                    bias=None if self._biases is None else self._biases[index].data_ptr(),
                    outputs=self._outputs,
                    inputs=inputs + inputs % 2,
                )
                for index, matrix in enumerate(self._matrices)
            )
        )

    @staticmethod
    def work(dtype: torch.dtype) -> bool:
        """Whether there are such products on this machine."""
        return dtype == torch.bfloat16 and available()

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b`, each matrix with rows of its own: bfloat16 `[K, N, in]` to float32."""
        x = F.pad(x, (0, 1)) if x.shape[2] % 2 else x.contiguous()
        y = torch.empty(*x.shape[:2], self._outputs)
        self._decoder.multiply(self._products, x.shape[1], x.data_ptr(), y.data_ptr())
        return y


def packed(weight: Tensor) -> Tensor:
    """A matrix as the decoder reads it.

    Args:
        weight: bfloat16 or int8. `[out, in]`

    Returns:
        `[blocks, groups of inputs, 64, inputs]`, with four bytes of inputs in a group; what is
        missing of outputs and inputs is 0.
    """
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    padded = F.pad(weight, (0, -inputs % together, 0, -outputs % BLOCK_OUTPUTS))
    blocks = padded.view(-1, BLOCK_OUTPUTS, padded.shape[1] // together, together)
    return blocks.transpose(1, 2).contiguous()
