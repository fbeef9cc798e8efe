"""Medusa heads (Cai et al., 2024): guesses at later tokens from one hidden state.

With `h` the state after the final norm at the newest committed token, which gives the next token
itself, head i (from 0) guesses the token i + 1 places after that next one:

    x = h;  x = x + SiLU(W x + b), once per block;  logits = lm x

By the time heads run, that next token is known. Heads of ours may see it: their first block is
SiLU(W h + U e + b), with `e` the token's row of the base model's output matrix, scaled to a root
mean square of 1. (Hydra, Ankner et al. 2024, goes on so from guess to guess; here all heads still
run at once.)

Owns the arithmetic; files are `common.model.medusa_checkpoint`'s, trees of guesses and what
becomes of them the verifier's. A wrong guess costs speed, never text, so nothing here has to be
bit-equal between batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model import medusa_checkpoint
from common.model.linear import PackedLinear, packing_works
from common.model.medusa_checkpoint import HeadWeights, Tree

Product = Callable[[Tensor], Tensor]

_EPS = 1e-6


class MedusaHeads:
    """Heads ready to guess.

    Args:
        weights: Of the heads.
        lm_head: The base model's output matrix, used where the heads have none. # [V, d]
        dtype: To compute in; the base model's.
        device: Where they run.
    """

    def __init__(
        self, weights: HeadWeights, *, lm_head: Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_heads: int = weights.num_heads
        self.tree: Tree | None = weights.tree
        """Sparse static tree that was chosen for these heads: paths of ranks, or None."""
        self._vocab_size = lm_head.shape[0]
        self._lm_head = lm_head
        self._sees_token = weights.token is not None
        block, bias = weights.block.to(device, dtype), weights.bias.to(device, dtype)
        # The first block has one input for all heads, so it is one product.
        first = block[:, 0].flatten(0, 1)
        if weights.token is not None:
            first = torch.cat((first, weights.token.to(device, dtype).flatten(0, 1)), dim=1)
        self._first = _product(first, bias[:, 0].flatten())
        self._later = [
            [_product(block[head, layer], bias[head, layer]) for head in range(self.num_heads)]
            for layer in range(1, weights.num_layers)
        ]
        self._shared = weights.lm is None
        outputs = [lm_head] if weights.lm is None else list(weights.lm)
        self._outputs = [_product(matrix.to(device, dtype), None) for matrix in outputs]

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        hidden_size: int,
        vocab_size: int,
        lm_head: Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> MedusaHeads:
        """Loads heads from any layout that `common.model.medusa_checkpoint` knows.

        Args:
            path: A directory, or the file in it that holds the weights.
            hidden_size: Of the base model.
            vocab_size: Rows of its output matrix.
            lm_head: That matrix. # [V, d]
            dtype: To compute in; the base model's.
            device: Where they run.

        Raises:
            ModelError: Missing, corrupt or made for another model; names file and key.
        """
        assert lm_head.shape == (vocab_size, hidden_size)
        weights = medusa_checkpoint.load(path, lm_head=lm_head)
        return cls(weights, lm_head=lm_head, dtype=dtype, device=device)

    @torch.inference_mode()
    def top(self, hidden: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Each head's likeliest tokens.

        Args:
            hidden: States after the final norm, in the heads' type. # [N, d]
            chosen: The tokens that were chosen from them, int64. # [N]
            k: How many; at most the vocabulary.

        Returns:
            Ids (int64) and their probabilities (float32), likeliest first. # [K, N, k] each
        """
        assert hidden.ndim == 2
        assert chosen.shape == hidden.shape[:1]
        assert 0 < k <= self._vocab_size
        chances = self._logits(hidden, chosen).softmax(-1, dtype=torch.float32)  # [K, N, V]
        values, ids = chances.topk(k, dim=-1)
        return ids, values

    def _logits(self, hidden: Tensor, chosen: Tensor) -> Tensor:
        """All heads' logits. # [N, d], [N] -> [K, N, V]"""
        rows, size = hidden.shape
        seen = hidden
        if self._sees_token:
            seen = torch.cat((hidden, token_vectors(self._lm_head, chosen).to(hidden)), dim=1)
        inner = self._first(seen).view(rows, self.num_heads, size).transpose(0, 1)
        x = hidden + F.silu(inner)  # [K, N, d]
        for layer in self._later:
            x = x + F.silu(_each(layer, x))
        if self._shared:
            return self._outputs[0](x.reshape(-1, size)).view(self.num_heads, rows, -1)
        return _each(self._outputs, x)


def token_vectors(lm_head: Tensor, tokens: Tensor) -> Tensor:
    """What heads see of tokens.

    Args:
        lm_head: The base model's output matrix. # [V, d]
        tokens: Ids. # [...]

    Returns:
        Their rows, each scaled to a root mean square of 1. # [..., d]
    """
    return F.rms_norm(lm_head[tokens], lm_head.shape[1:], eps=_EPS)


def _each(products: list[Product], x: Tensor) -> Tensor:
    """One product a head. # [K, N, in] -> [K, N, out]"""
    return torch.stack([run(rows) for run, rows in zip(products, x.unbind(), strict=True)])


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    """A linear map in the fastest form for few rows: packed for oneDNN where that works."""
    if weight.device.type == "cpu" and packing_works(weight.dtype):
        return PackedLinear(weight.detach(), bias)
    return lambda x: F.linear(x, weight, bias)
