"""One layer of a decoder of Llama's shape on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from common.model.cuda.attention import Attention
from common.model.cuda.experts import Experts
from common.model.cuda.keys import Size
from common.model.cuda.products import Products
from common.model.cuda.rowwise import RmsNorm, Turn, gated
from common.model.kv_cache import LayerShape
from common.model.linear import MakeProduct, Product, added
from common.model.llama import Gate, Latents, Linear, Llama, LlamaLayer, Mixture, Mlp, PerLayerInput


class Layer:
    """One decoder layer.

    Args:
        weights: Of it.
        shape: Of the keys and values that it sees.
        model: Whose it is.
        products: What it multiplies by.
    """

    def __init__(
        self, weights: LlamaLayer, shape: LayerShape, model: Llama, products: Products
    ) -> None:
        heads, kv_heads, size = model.heads, shape.kv_heads, shape.key_size
        epsilon = model.epsilon
        make, mlp = products.layer, weights.mlp
        self._make_heads: Product | _LatentHeads
        if weights.latents is None:
            self._make_heads = make(*Linear.joined(weights.q, weights.k, weights.v))
        else:
            self._make_heads = _LatentHeads(weights, weights.latents, products)
        self._out = make(*weights.o)
        self._experts: Experts | None = None
        self._expert_norms: list[RmsNorm] = []
        if isinstance(mlp, Mixture):
            rounded = products.rounds_experts
            self._experts = Experts(mlp, products.whole, model.gate, rounded=rounded)
            self._expert_norms += [RmsNorm(norm, epsilon) for norm in mlp.norms or ()]
        dense = mlp.shared if isinstance(mlp, Mixture) else mlp
        self._mlp = None if dense is None else _Mlp(dense, make, model.gate)
        self._attention_norm = _norm(weights.attention_norm, epsilon)
        self._attention_post_norm = _norm(weights.attention_post_norm, epsilon)
        self._mlp_norm = _norm(weights.mlp_norm, epsilon)
        self._mlp_post_norm = _norm(weights.mlp_post_norm, epsilon)
        norms = None
        if weights.q_norm is not None:
            k_norm = weights.k_norm
            norms = weights.q_norm, weights.q_norm if k_norm is None else k_norm  # of no keys
        made = kv_heads if len(weights.k.weight) else 0
        self._turn = Turn(heads, made, size, norms, epsilon, norms_values=model.norms_values)
        self._attend = Attention(
            heads,
            kv_heads,
            size,
            model.scale,
            weights.window,
            weights.sinks,
            model.softcap,
        )
        self._per_layer_input: _PerLayerInput | None = None
        if weights.per_layer_input is not None:
            self._per_layer_input = _PerLayerInput(weights.per_layer_input, products, model)
        self._scale = weights.scale
        self.rotary = weights.rotary
        """Which of the model's rotary embeddings is its."""

    def __call__(
        self,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        growth: Tensor | None,
        cache: Tensor,
        words: Tensor,
        size: Size,
        page: int,
        per_layer: Tensor | None,
    ) -> Tensor:
        """Maps hidden states to the next layer's.

        Args:
            x: `[N, hidden]`; overwritten.
            angles: Of its rotary embedding, see `Rotary.table`.
            growth: See `Growth.table`; None for none.
            cache: Of the layer, `[slots, Hkv, 2 D]`.
            words: The batch, laid out; see `keys`.
            size: Of the batch.
            page: Positions in a block of the cache.
            per_layer: What it reads beside them, `[N, P]`; None for nothing.

        Returns:
            `[N, hidden]`.
        """
        read = x if self._attention_norm is None else self._attention_norm(x)
        queries = self._turn(self._make_heads(read), angles, growth, words, cache)
        attended = self._attend(queries, cache, words, size, page).view(len(x), -1)
        x = added(x, self._out, attended, self._attention_post_norm)
        x = self._feed_forward(x, words, size)
        if self._per_layer_input is not None and per_layer is not None:
            x = self._per_layer_input(x, per_layer)
        return x if self._scale == 1 else x.mul_(self._scale)

    def _feed_forward(self, x: Tensor, words: Tensor, size: Size) -> Tensor:
        """Adds to `[N, hidden]` what that part makes of it."""
        read = x if self._mlp_norm is None else self._mlp_norm(x)
        norm, mlp = self._mlp_post_norm, self._mlp
        if self._experts is not None and self._expert_norms:
            assert mlp is not None
            assert norm is not None
            of_router, of_experts, behind_experts, behind_plain = self._expert_norms
            found = self._experts(of_experts(x), words, size, None, of_router(x))
            both = behind_experts(found).add_(behind_plain(mlp.down(mlp.opened(read))))
            return x.add_(norm(both))
        if self._experts is not None:
            beside = None if mlp is None else mlp.down(mlp.opened(read))
            found = self._experts(read, words, size, beside)
            return x.add_(found if norm is None else norm(found))
        assert mlp is not None
        return added(x, mlp.down, mlp.opened(read), norm)


class _LatentHeads:
    """Makes queries, keys and values by way of latents.

    Args:
        weights: Of a layer.
        latents: Of it.
        products: What it multiplies by.
    """

    def __init__(self, weights: LlamaLayer, latents: Latents, products: Products) -> None:
        product, q_norm, kv_norm, epsilon = latents
        self._make, self._queries = products.layer(*product), products.layer(*weights.q)
        others = Linear.joined(weights.k, weights.v)
        self._others = products.whole(*others)  # it copies a part of its inputs
        self._widths = [len(product.weight) - others.weight.shape[1], others.weight.shape[1]]
        self._q_norm, self._kv_norm = _norm(q_norm, epsilon), RmsNorm(kv_norm, epsilon)
        self._normed = len(kv_norm)

    def __call__(self, x: Tensor) -> Tensor:
        """Maps what attention reads, `[N, hidden]`, to all heads, `[N, (H + 2 Hkv) D]`."""
        of_queries, of_others = self._make(x).split(self._widths, dim=1)
        self._kv_norm.in_place(of_others[:, : self._normed])
        if self._q_norm is not None:
            self._q_norm.in_place(of_queries)
            x = of_queries.contiguous()
        return torch.cat((self._queries(x), self._others(of_others.contiguous())), dim=1)


class _PerLayerInput:
    """Reads the per-layer embeddings of a layer.

    Args:
        weights: How.
        products: What it multiplies by.
        model: Whose layer it is.
    """

    def __init__(self, weights: PerLayerInput, products: Products, model: Llama) -> None:
        self._gate, self._curve = products.layer(*weights.gate), model.gate
        self._product = products.layer(*weights.product)
        self._norm = RmsNorm(weights.norm, model.epsilon)

    def __call__(self, x: Tensor, beside: Tensor) -> Tensor:
        """Adds to `[N, hidden]` what becomes of `[N, P]`."""
        opened = gated(torch.cat((self._gate(x), beside), dim=1), self._curve)
        return added(x, self._product, opened, self._norm)


class _Mlp:
    """A feed-forward part that all rows take.

    Args:
        weights: Of it.
        make: Makes its products.
        gate: How it gates.
    """

    def __init__(self, weights: Mlp, make: MakeProduct, gate: Gate) -> None:
        self._gate_up, self._gate = make(*weights.gate_up), gate
        self.down = make(*weights.down)
        """Its second product."""

    def opened(self, x: Tensor) -> Tensor:
        """What the second product reads, `[N, inner]`."""
        return gated(self._gate_up(x), self._gate)


def _norm(weight: Tensor | None, epsilon: float) -> RmsNorm | None:
    return None if weight is None else RmsNorm(weight, epsilon)
