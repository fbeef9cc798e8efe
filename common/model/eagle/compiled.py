"""An EAGLE-3 head for the compiled decoder: a model of one layer, whose rows are given."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import pointer
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.model.drafting_head import MOST_DEPTH, MOST_DRAFTED, Going, Guessed
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import Behind, KeyedHead
from common.model.native.layout import LARGE, lay_out
from common.model.native.library import Decoder, instructions, packed
from common.model.native.memory import Addresses, address
from common.model.native.product import PackedMatrix
from common.model.native.structures import Guessing, Layer, Model, Product, Request, Rolling
from common.model.output import rows_of
from common.model.segment import PathRows, Segment

_FEW_ROWS = 64
"""More are a prompt's, for which there is time to wake other threads."""


class _LaidOut(NamedTuple):
    """Rows for the decoder, where it is to write, and what it reads."""

    request: Request
    logits: Tensor  # [M, W]
    left: Tensor  # [M, d]
    kept: tuple[object, ...]


class NativeEagle(KeyedHead):
    """A head whose drafts are single calls; bfloat16 weights are rounded to int8.

    Args:
        weights: Of the head, see `can_run`.
        embeddings: The target's, used where the head has none. # [V, d]
        cache: The head's layer of the target's cache. # [slots + spare, kv_heads, 2 * head_size]
        positions: Positions a text may have.
        threads: Of the processor, for few rows.
        most_threads: For those of a prompt; no more than for others where 0.
    """

    rolls = True

    def __init__(
        self,
        weights: EagleWeights,
        *,
        embeddings: Tensor,
        cache: Tensor,
        positions: int,
        threads: int,
        most_threads: int = 0,
    ) -> None:
        slots = len(cache) - weights.shape.spare
        super().__init__(weights.ids, vocab_size=len(embeddings), slots=slots)
        self._dtype, self._quantize = cache.dtype, cache.dtype == torch.bfloat16
        self._decoder = Decoder(threads, most_threads, dtype=cache.dtype)
        self._outputs, self._hidden = weights.lm_head.shape
        self._addresses = Addresses()
        self._matrices: list[PackedMatrix] = []
        own = embeddings if weights.embeddings is None else weights.embeddings.to(cache.dtype)
        cos, sin = weights.rotary.table(positions + MOST_DEPTH)
        names = ("input_norm", "hidden_norm", "mlp_norm", "norm")
        norms = {name: getattr(weights, name).float().contiguous() for name in names}
        self._kept = (cache, own.contiguous(), cos, sin, *norms.values())
        self._aside = np.arange(slots, len(cache))
        at = {name: norm.data_ptr() for name, norm in norms.items()}
        layer = Layer(
            qkv=self._product(*(self._turned(each) for each in (weights.q, weights.k, weights.v))),
            out=self._product(weights.o),
            gate_up=self._product(weights.gate, weights.up),
            down=self._product(weights.down),
            attention_norm=None if weights.norm_before_residual else at["hidden_norm"],
            mlp_norm=at["mlp_norm"],
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            kv_heads=weights.kv_heads,
            size=weights.head_size,
            cache=cache.data_ptr(),
            scale=1.0,
        )
        self._layers = (Layer * 1)(layer)
        self._model = Model(
            hidden=self._hidden,
            heads=weights.heads,
            inner=len(weights.gate),
            layers=1,
            vocab=len(own),
            positions=len(cos),
            slots=len(cache),
            epsilon=weights.epsilon,
            scale=weights.head_size**-0.5,
            embeddings=self._kept[1].data_ptr(),
            embedding_scale=1.0,
            norm=at["norm"],
            head=self._product(weights.lm_head),
            layer=self._layers,
            token_norm=at["input_norm"],
            given_norm=at["hidden_norm"] if weights.norm_before_residual else None,
            shown=self._product(weights.fc, bias=weights.fc_bias),
        )

    @staticmethod
    def can_run(weights: EagleWeights, dtype: torch.dtype) -> bool:
        """Whether there is a decoder for a cache of a type, and it knows such a head."""
        shown, attended = len(weights.fc[0]), len(weights.o[0])
        sizes = (weights.hidden, shown, attended, len(weights.gate), weights.head_size)
        even = all(size % 2 == 0 for size in sizes)
        return bool(instructions(dtype)) and even

    def write(self, texts: Sequence[Behind]) -> None:
        """See `KeyedHead`."""
        self._run(self._shown(texts, draft=False))

    def draft(self, texts: Sequence[Behind]) -> _Draft:
        """See `DraftingHead`."""
        return _Draft(self, texts, *self._run(self._shown(texts, draft=True)))

    def roll(self, texts: Sequence[Behind], going: Going) -> list[Guessed]:
        """See `DraftingHead`."""
        levels = min(len(going.prices) - 1, MOST_DRAFTED // len(texts))
        ranks = min(going.ranks, self._outputs)
        chosen = np.empty((levels + 1, len(texts), ranks), dtype=np.int64)
        chances = np.empty(chosen.shape, dtype=np.float32)
        factors, depths = array("f"), len(going.prices)
        for line in going.factors:
            factors.fromlist([*line])
        prices, row_prices = array("f", going.prices), array("f", going.row_prices)
        tokens = array("q", going.tokens)
        assert len(tokens) == len(texts)
        assert len(factors) == len(texts) * depths == len(texts) * len(row_prices)
        arrays = (factors, prices, row_prices, tokens)
        addresses = (numbers.buffer_info()[0] for numbers in arrays)
        ids = None if self._ids is None else self._ids.data_ptr()
        guessing = Guessing(ids, *addresses, depths, going.least)
        drawings, _kept = packed(going.drawings, levels) if going.drawings else (None, None)
        laid = self._shown(texts, draft=True)
        run = self._decoder.roll(
            self._model,
            laid.request,
            Rolling(drawings, None, None, pointer(guessing), ranks, -1),
            levels,
            slots=address(self._aside),
            chosen=address(chosen),
            behind=address(chances),
        )
        return [*zip(chosen[: run + 1].tolist(), chances[: run + 1].tolist(), strict=True)]

    def _shown(self, texts: Sequence[Behind], *, draft: bool) -> _LaidOut:
        """Rows that were shown; the last of each text's is wanted where there is a draft."""
        states = [text.states for text in texts]
        segments = [
            Segment(
                text.tokens,
                text.position,
                text.slots,
                wanted=[len(text.tokens) - 1] if draft else [],
            )
            for text in texts
        ]
        shown = states[0] if len(states) == 1 else torch.cat(states)
        return self._lay_out(segments, shown=shown.to(self._dtype).contiguous())

    def further(self, segments: Sequence[Segment], left: Tensor) -> tuple[Tensor, Tensor]:
        """Computes drafted rows.

        Args:
            segments: Theirs; each row's id is the token after it.
            left: What the rows before them end with, float32. # [N, d]

        Returns:
            Logits of wanted rows, and what they end with, both float32. # [M, W], [M, d]
        """
        return self._run(self._lay_out(segments, given=left))

    def _run(self, laid: _LaidOut) -> tuple[Tensor, Tensor]:
        self._decoder.run(self._model, laid.request)
        return laid.logits, laid.left

    def _lay_out(
        self,
        segments: Sequence[Segment],
        *,
        shown: Tensor | None = None,
        given: Tensor | None = None,
    ) -> _LaidOut:
        """Rows, and what they are shown or begin with."""
        words = lay_out(segments, self._addresses)
        words[LARGE] = words[0] > _FEW_ROWS
        wanted = words[1]
        logits, left = torch.empty(wanted, self._outputs), torch.empty(wanted, self._hidden)
        states = torch.empty(wanted, self._hidden, dtype=self._dtype)
        request = Request(
            words=words.buffer_info()[0],
            logits=logits.data_ptr(),
            states=states.data_ptr(),
            shown=None if shown is None else shown.data_ptr(),
            given=None if given is None else given.data_ptr(),
            left=left.data_ptr(),
        )
        return _LaidOut(request, logits, left, (words, shown, given, states))

    def aside(self, first: int, count: int) -> list[int]:
        """Slots that drafted rows may have, none of any text."""
        assert first + count <= MOST_DRAFTED, "more drafted rows than there is room for"
        aside: list[int] = self._aside[first : first + count].tolist()
        return aside

    def _turned(self, weight: Tensor) -> Tensor:
        """A matrix whose inputs are the row first, as the decoder has them, and then the token."""
        return weight.roll(-self._hidden, dims=1)

    def _product(self, *parts: Tensor, bias: Tensor | None = None) -> Product:
        """Maps of one input as one matrix."""
        weight = torch.cat(parts).to(self._dtype)
        self._matrices.append(PackedMatrix(weight, bias, self._decoder, quantize=self._quantize))
        return self._matrices[-1].product


class _Draft:
    """A draft of such a head.

    Args:
        head: Guesses.
        texts: What it drafts behind. # [S]
        logits: Of the tokens after those behind each text's last row. # [S, W]
        left: What those rows ended with. # [S, d]
    """

    def __init__(
        self, head: NativeEagle, texts: Sequence[Behind], logits: Tensor, left: Tensor
    ) -> None:
        self._head, self._texts, self._left = head, texts, left
        self.logits = logits
        """See `Draft`."""
        self._of = [*range(len(texts))]  # whose each row of the last depth is
        self._paths: list[list[int]] = [[] for _ in texts]  # slots of its path, aside
        self._drafted = 0

    def further(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `Draft`."""
        aside = self._head.aside(self._drafted, len(parents))
        self._drafted += len(parents)
        self._of = [self._of[parent] for parent in parents]
        self._paths = [
            [*self._paths[parent], slot] for parent, slot in zip(parents, aside, strict=True)
        ]
        segments: list[PathRows] = []
        first = 0
        while first < len(parents):  # rows of one text follow each other
            text = self._of[first]
            end = first + self._of.count(text)
            segments.append(
                PathRows(
                    tokens[first:end],
                    self._texts[text].end,
                    self._texts[text].slots,
                    self._paths[first:end],
                    wanted=range(end - first),
                )
            )
            first = end
        self.logits, self._left = self._head.further(segments, rows_of(self._left, parents))
        return self.logits
