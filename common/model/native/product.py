"""Matrices packed for the compiled decoder's products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.native.library import BLOCK_OUTPUTS, Decoder
from common.model.native.squeezed import Squeezed, squeeze
from common.model.native.structures import Product
from common.model.pages import LargePages
from common.model.quantized import round_weight, row_sums

_PAGES = LargePages()
"""Where matrices lie: those of a model one after another, as a pass reads them."""


class NativeProducts:
    """Matrices of one shape, ready to be multiplied by.

    Args:
        decoder: Whose threads multiply.
        weights: Of the decoder's type, `[K, out, in]`.
        biases: `[K, out]` or None.
        quantize: Whether to round weights to int8, and what they are multiplied with.
    """

    def __init__(
        self, decoder: Decoder, weights: Tensor, biases: Tensor | None, *, quantize: bool = False
    ) -> None:
        self._decoder = decoder
        self._outputs = weights.shape[1]
        self._matrices = [
            PackedMatrix(
                weight,
                None if biases is None else biases[index],
                decoder,
                quantize=quantize,
            )
            for index, weight in enumerate(weights)
        ]
        each = (matrix.product for matrix in self._matrices)
        self.products = (Product * len(weights))(*each)
        """As the decoder reads them; valid as long as this is."""

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b`, each matrix with rows of its own: `[K, N, in]` to float32."""
        missing = self.products[0].inputs - x.shape[2]
        x = F.pad(x, (0, missing)) if missing else x.contiguous()
        y = torch.empty(*x.shape[:2], self._outputs)
        self._decoder.multiply(self.products, x.shape[1], x.data_ptr(), y.data_ptr())
        return y


class PackedMatrix:
    """One matrix as the decoder reads it.

    Args:
        weight: Of the decoder's type, `[out, in]`; not kept.
        bias: `[out]` or None.
        decoder: Who reads it.
        quantize: Whether to round the weights to int8.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, decoder: Decoder, *, quantize: bool
    ) -> None:
        outputs, inputs = weight.shape
        self._bias = None if bias is None else bias.float().contiguous()
        self._scales: Tensor | None = None
        self._sums: Tensor | None = None
        squeezed: Squeezed | None = None
        if quantize:
            weight, self._scales = round_weight(weight)
            self._sums = row_sums(weight)
        else:
            if inputs * weight.itemsize % 4:  # rows are padded likewise
                weight = F.pad(weight, (0, 1))
            squeezed = squeeze(weight) if decoder.tiles else None
        packed = squeezed.packed if squeezed else _packed(weight, decoder.slice_outputs)
        self._packed = _PAGES.copy(packed)
        self._strays = squeezed and (squeezed.starts, squeezed.strays)
        self.product = Product(
            packed=self._packed.data_ptr(),
            bias=_pointer(self._bias),
            scales=_pointer(self._scales),
            sums=_pointer(self._sums),
            stray_starts=_pointer(self._strays and self._strays[0]),
            strays=_pointer(self._strays and self._strays[1]),
            outputs=outputs,
            inputs=weight.shape[1],
            exponent=squeezed.exponent if squeezed else 0,
        )
        """What points to it; valid as long as this is."""


def _packed(weight: Tensor, side_by_side: int) -> Tensor:
    """Packs a matrix. # [out, in] -> [slices, groups of inputs, outputs of a slice]

    A group of inputs has four bytes, moved as one number: matrices begin with a whole one. What is
    missing of outputs and inputs is 0.
    """
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    missing = (0, -inputs % together, 0, -outputs % BLOCK_OUTPUTS)
    padded = F.pad(weight, missing) if any(missing) else weight.contiguous()
    groups = padded.view(torch.int32)
    return groups.view(-1, side_by_side, groups.shape[1]).transpose(1, 2)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
