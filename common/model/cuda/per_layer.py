"""What layers of a decoder read beside rows, on CUDA."""

from __future__ import annotations

from torch import Tensor

from common.model.cuda.products import Products
from common.model.cuda.rowwise import RmsNorm
from common.model.llama import PerLayerEmbeddings


class PerLayer:
    """Makes them, for all layers at once.

    Args:
        weights: Of what.
        products: What it multiplies by.
    """

    def __init__(self, weights: PerLayerEmbeddings, products: Products) -> None:
        self._embeddings, self._scale = weights.embeddings, weights.scale
        self._product = products.layer(*weights.product)
        self._norm, self._size = RmsNorm(weights.norm, weights.epsilon), len(weights.norm)

    def __call__(self, ids: Tensor, x: Tensor) -> Tensor:
        """Of tokens `[N]` and the rows that begin with them, `[N, hidden]`; `[N, layers, P]`."""
        made = self._product(x)
        self._norm.in_place(made.view(-1, self._size))
        made.add_(self._embeddings.index_select(0, ids), alpha=self._scale)
        return made.view(len(x), -1, self._size)
