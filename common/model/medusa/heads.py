"""Medusa heads (Cai et al., 2024): guesses at later tokens from one hidden state.

With `h` the state after the final norm at the newest committed token, which gives the next token
itself, head i (from 0) guesses the token i + 1 places after that next one:

    x = h;  x = x + SiLU(W x + b), once per block;  logits = lm x

By the time heads run, that next token is known. Heads of ours may see it: their first block is
SiLU(W h + U e + b), with `e` the token's row of the base model's output matrix, scaled to a root
mean square of 1. (Hydra, Ankner et al. 2024, goes on so from guess to guess; here all heads still
run at once.)

Owns the arithmetic; files are `common.model.medusa.checkpoint`'s, trees of guesses and what
becomes of them the verifier's. A wrong guess costs speed, never text, so nothing here has to be
bit-equal between batch sizes; where compiled code computes them, weights are rounded to int8.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.likeliest import likeliest
from common.model.linear import MakeProduct, packed_products
from common.model.medusa import checkpoint
from common.model.medusa.compiled import NativeMedusa
from common.model.medusa.weights import HeadWeights, Tree
from common.model.native import Decoder
from common.model.room import SMALLER_CACHE, room_for
from common.model.transfer import on_device

Product = Callable[[Tensor], Tensor]
"""Maps `[K, N, in]` to `[K, N, out]`, with a matrix for each of K."""

_EPS = 1e-6


class MedusaHeads:
    """Heads ready to guess.

    Args:
        weights: Of the heads.
        lm_head: The base model's output matrix, used where the heads have none. # [V, d]
        dtype: To compute in; see `head_dtype`.
        device: Where they run.
        threads: Of the processor, for compiled heads; torch's number where None.
    """

    def __init__(
        self,
        weights: HeadWeights,
        *,
        lm_head: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        threads: int | None = None,
    ) -> None:
        self.num_heads: int = weights.num_heads
        self.tree: Tree | None = weights.tree
        """Sparse static tree that was chosen for these heads: paths of ranks, or None."""
        self._dtype = dtype
        self._lm_head = lm_head
        self._token_scale = None if weights.token is None else _token_scale(lm_head)
        block, bias = weights.block.to(device, dtype), weights.bias.to(device, dtype)
        # The first block has one input for all heads, so it is one product.
        first = block[:, 0].flatten(0, 1)
        if weights.token is not None:
            first = torch.cat((first, weights.token.to(device, dtype).flatten(0, 1)), dim=1)
        first_bias = bias[:, 0].flatten()
        output = (lm_head[None] if weights.lm is None else weights.lm).to(device, dtype)
        self._shared = weights.lm is None
        self._native: NativeMedusa | None = None
        if device.type == "cpu" and NativeMedusa.work(dtype):
            scale = self._token_scale
            self._native = NativeMedusa(
                Decoder(threads or torch.get_num_threads()),
                (first, first_bias),
                (block[:, 1:].transpose(0, 1), bias[:, 1:].transpose(0, 1)),
                output,
                None if scale is None else (lm_head.to(dtype), scale),
            )
            return
        make = _maker(device, dtype)
        self._first = make(first[None], first_bias[None])
        later = range(1, weights.num_layers)
        self._later = [make(block[:, layer], bias[:, layer]) for layer in later]
        self._output = make(output, None)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        lm_head: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        threads: int | None = None,
    ) -> MedusaHeads:
        """Loads heads from any layout that `common.model.medusa.checkpoint` knows.

        Args:
            path: A directory, or the file in it that holds the weights.
            lm_head: The base model's output matrix. # [V, d]
            dtype: To compute in; see `head_dtype`.
            device: Where they run.
            threads: Of the processor, for compiled heads; torch's number where None.

        Raises:
            ModelError: Missing, corrupt, made for another model or too large; names file and key.
        """
        with room_for(f"the heads of {path}", SMALLER_CACHE):
            weights = checkpoint.load(path, lm_head=lm_head)
            return cls(weights, lm_head=lm_head, dtype=dtype, device=device, threads=threads)

    def logits(self, hidden: Tensor, chosen: Sequence[int]) -> Tensor:
        """All heads' logits.

        Args:
            hidden: States after the final norm, of any type. # [N, d]
            chosen: The tokens that were chosen from them. # [N]

        Returns:
            Logits, float32 by compiled code, else in the heads' type. # [K, N, V]
        """
        assert hidden.ndim == 2
        assert len(chosen) == len(hidden)
        hidden = hidden.to(self._dtype)
        if self._native is not None:
            return self._native(hidden, chosen)
        return self._through_torch(hidden, chosen)

    @torch.inference_mode()
    def _through_torch(self, hidden: Tensor, chosen: Sequence[int]) -> Tensor:
        rows, size = hidden.shape
        seen = hidden
        if self._token_scale is not None:
            at = on_device(chosen, hidden.device)
            scale = self._token_scale.index_select(0, at)[:, None]
            vectors = self._lm_head.index_select(0, at) * scale
            seen = torch.cat((hidden, vectors.to(hidden)), dim=1)
        inner = self._first(seen[None]).view(rows, self.num_heads, size).transpose(0, 1)
        x = (hidden + F.silu(inner)).to(hidden)  # [K, N, d]
        for layer in self._later:
            x = (x + F.silu(layer(x))).to(hidden)
        if self._shared:
            return self._output(x.reshape(1, -1, size)).view(self.num_heads, rows, -1)
        return self._output(x)

    def top(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens.

        Args:
            logits: As `logits` returns them. # [K, N, V]
            k: How many; at most the vocabulary.

        Returns:
            Ids (int64) and their probabilities (float32), likeliest first. # [K, N, k] each
        """
        return likeliest(logits, k)


def head_dtype(model: torch.dtype, device: torch.device) -> torch.dtype:
    """What the heads of a model are best computed in: its type, or the one that is compiled."""
    compiled = device.type == "cpu" and NativeMedusa.work(torch.bfloat16)
    return torch.bfloat16 if compiled else model


def _token_scale(lm_head: Tensor) -> Tensor:
    """What each token's row is multiplied by in `token_vectors`; float32. # [V, d] -> [V]"""
    lengths: Tensor = torch.linalg.vector_norm(lm_head, dim=1, dtype=torch.float32)
    return (lengths.square() / lm_head.shape[1] + _EPS).rsqrt()


def token_vectors(lm_head: Tensor, tokens: Tensor) -> Tensor:
    """What heads see of tokens.

    Args:
        lm_head: The base model's output matrix. # [V, d]
        tokens: Ids. # [...]

    Returns:
        Their rows, each scaled to a root mean square of 1. # [..., d]
    """
    return F.rms_norm(lm_head[tokens], lm_head.shape[1:], eps=_EPS)


def _maker(device: torch.device, dtype: torch.dtype) -> Callable[[Tensor, Tensor | None], Product]:
    """Makes products, of weights `[K, out, in]` and biases, in the fastest form for few rows."""
    if device.type == "cpu" and (packed := packed_products(dtype)) is not None:
        return partial(_packed, packed[1])
    return lambda weights, biases: partial(_multiply, weights=weights, biases=biases)


def _packed(make: MakeProduct, weights: Tensor, biases: Tensor | None) -> Product:
    """Products packed for oneDNN."""
    each = itertools.repeat(None) if biases is None else biases.unbind()
    pairs = zip(weights.detach(), each, strict=False)
    products = [make(weight, bias) for weight, bias in pairs]
    return lambda x: torch.stack([run(rows) for run, rows in zip(products, x, strict=True)])


def _multiply(x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    y = x @ weights.mT
    return y if biases is None else y + biases[:, None]
