"""Pretraining of a small Llama-shaped model and its tokenizer.

The defaults are the bundled demo target's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from common.errors import InvalidArgument
from training.blocks import Blocks
from training.corpus import Document
from training.loop import decayed

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_EVALUATED_BLOCKS = 10
"""Blocks of an evaluation pass."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of a Llama model with tied embeddings.

    Raises:
        InvalidArgument: Heads of no even size, or of no equal share of the key/value heads.
    """

    vocab: int = 4096
    """Ids of its tokenizer."""

    layers: int = 12
    """Decoder layers."""

    hidden: int = 320
    """Size of the residual stream."""

    heads: int = 10
    """Attention heads."""

    kv_heads: int = 2
    """Key/value heads."""

    mlp: int = 864
    """Inner size of the feed-forward layers."""

    context: int = 2048
    """Positions it may be served with."""

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            problem = f"must be a multiple of {2 * self.heads}, twice the heads, got {self.hidden}"
            raise InvalidArgument("--hidden", problem)
        if self.heads % self.kv_heads:
            problem = f"must divide the {self.heads} heads, got {self.kv_heads}"
            raise InvalidArgument("--kv-heads", problem)


def train_tokenizer(documents: Iterable[Document], shape: ModelShape) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE, with the chat template and special tokens of the demo pair."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab,
        special_tokens=[PAD, BEGIN, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        extra_special_tokens=list(ROLES),
        model_max_length=shape.context,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(shape: ModelShape, tokenizer: Any, *, seed: int) -> LlamaForCausalLM:
    """Makes a model with random weights for a tokenizer."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


class Pretraining:
    """A language model in training.

    Args:
        model: A `transformers` causal language model in float32.
        held_out: Blocks whose loss chooses the checkpoint.
        accelerator: Where to compute.
    """

    def __init__(self, model: Any, held_out: Blocks, accelerator: Accelerator) -> None:
        self._model: Any = model.to(accelerator.device)
        self.module: nn.Module = self._model
        self._held_out, self._accelerator = held_out.ids, accelerator

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """See `Task`."""
        return decayed(self.module, learning_rate)

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """See `Task`."""
        loss = self._loss(batch)
        self._accelerator.backward(loss)
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """See `Task`."""
        total = 0.0
        for part in self._held_out.split(_EVALUATED_BLOCKS):
            batch = part.to(self._accelerator.device, torch.int64)
            total += self._loss(batch).item() * len(part)
        loss = total / len(self._held_out)
        return {"score": -loss, "loss held out": loss}

    def _loss(self, batch: Tensor) -> Tensor:
        with self._accelerator.autocast():
            loss: Tensor = self._model(input_ids=batch, labels=batch).loss
        return loss


def _texts(documents: Iterable[Document]) -> Iterable[str]:
    for document in documents:
        yield document.text or "\n".join(turn.content for turn in document.turns)
