"""Training of EAGLE-3 heads (Li et al., 2025) over a frozen target.

The labels are the target's own distributions, on corpora and on text that it wrote, at each depth
of the head's drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.medusa.weights import Tree
from training import acceptance
from training.eagle_net import EagleNet
from training.held_out import Domain
from training.loop import decayed
from training.loss import chunks, distributions
from training.output import OutputLayer
from training.written import Written

DEPTH_DECAY = 0.8
"""Depth j weighs this to the power of j."""

SCORE_DEPTH = 5
"""Length of the drafts whose tokens per pass choose the checkpoint."""


class EagleTraining:
    """A head over a frozen target.

    Args:
        target: A `transformers` causal language model; not changed.
        net: The head.
        depths: How far it drafts in training.
        domains: What the checkpoint is chosen by.
        accelerator: Where to compute.
    """

    def __init__(
        self,
        target: Any,
        net: EagleNet,
        depths: int,
        domains: Sequence[Domain],
        accelerator: Accelerator,
    ) -> None:
        self.module: nn.Module = net.to(accelerator.device)
        self._net, self._depths = net, depths
        self._target = target.to(accelerator.device).eval().requires_grad_(False)
        self._output = OutputLayer.of(target)
        self._domains, self._accelerator = domains, accelerator

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """See `Task`."""
        return decayed(self.module, learning_rate)

    def losses(self, batch: Tensor, progress: float) -> dict[str, float]:
        """See `Task`."""
        features, states, embeddings = read(self._target, self._net.taps, batch)
        whole, single = 0.0, [0.0] * self._depths
        for part, share in chunks(states):
            labels = distributions(states[part], self._output, self._accelerator)
            if self._net.ids is not None:  # what it cannot guess counts for nothing
                labels = labels.index_select(-1, self._net.ids)
            total = labels.new_zeros(())
            with self._accelerator.autocast():
                drafts = self._net.depths(features[part], batch[part], embeddings, self._depths)
                for depth, logits in enumerate(drafts):
                    logs = logits.log_softmax(-1, dtype=torch.float32)
                    loss = -(labels[:, depth + 1 :] * logs).sum(-1).mean()
                    total = total + DEPTH_DECAY**depth * loss
                    single[depth] += loss.item() * share
            self._accelerator.backward(total * share)
            whole += total.item() * share
        return {"loss": whole, **{f"loss depth {i}": loss for i, loss in enumerate(single)}}

    def evaluate(self) -> dict[str, float]:
        """See `Task`."""
        with self._accelerator.autocast():
            found = {
                domain.name: ranks(self._target, self._net, domain.choosing, SCORE_DEPTH)
                for domain in self._domains
            }
        return acceptance.figures(found, chain(SCORE_DEPTH), "depth")


def chain(length: int) -> Tree:
    """The head's likeliest token at each of so many depths."""
    return tuple((0,) * depth for depth in range(1, length + 1))


@torch.inference_mode()
def ranks(
    target: Any, net: EagleNet, texts: Sequence[Written], depths: int
) -> list[list[list[int]]]:
    """At which rank the head has the token that comes, at each depth where all before were right.

    Args:
        target: A `transformers` causal language model.
        net: The head, in float32.
        texts: The target's greedy texts.
        depths: How far it drafts.

    Returns:
        For each text and each position from the prompt's last on, the rank of the token that stands
        2 + j places on; -1 where the text has ended, the vocabulary's size where the head cannot
        guess it.
    """
    found: list[list[list[int]]] = []
    for batch, part in acceptance.padded(texts, target.device, more=depths + 1):
        features, _, embeddings = read(target, net.taps, batch)
        columns = []
        with torch.autocast(batch.device.type, enabled=False):  # tokens tie in fewer bits
            for depth, logits in enumerate(net.depths(features, batch, embeddings, depths)):
                rows, coming = [], []
                for line, text in zip(logits, part, strict=True):
                    span = slice(text.prompt_tokens - 1, len(text.ids) - 1)
                    rows.append(line[span])
                    coming.append(acceptance.coming(text, depths)[:, depth])
                columns.append(_ranks(torch.cat(rows), torch.cat(coming).to(batch), net.ids))
        lengths = [len(text.ids) - text.prompt_tokens for text in part]
        found += [table.tolist() for table in torch.stack(columns, dim=1).split(lengths)]
    return found


def _ranks(logits: Tensor, tokens: Tensor, ids: Tensor | None) -> Tensor:
    """Ranks of the target's tokens among logits of the head's. # [P, W], [P] -> [P]"""
    if ids is None:
        return acceptance.rank(logits, tokens)
    places = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    known = (ids[places] == tokens) | (tokens < 0)
    found = acceptance.rank(logits, torch.where(tokens < 0, tokens, places))
    return found.where(known, len(ids))


@torch.no_grad()
def read(target: Any, taps: tuple[int, ...], ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a head reads of a text, the target's last states, normed, and its embeddings."""
    out = target.base_model(input_ids=ids, output_hidden_states=True)
    features = torch.cat([out.hidden_states[tap] for tap in taps], dim=-1)
    return features, out.last_hidden_state, target.get_input_embeddings().weight


def load(directory: Path, target: Any) -> EagleNet:
    """Reads a head to be measured, in float32.

    Args:
        directory: Of any form that a verifier takes.
        target: The `transformers` causal language model it is of.

    Raises:
        ModelError: Missing, corrupt, not supported or made for another target.
    """
    config, lm_head = target.config.get_text_config(), target.get_output_embeddings().weight
    weights = eagle_checkpoint.load(
        directory,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.num_hidden_layers,
        lm_head=lm_head,
    )
    return EagleNet(weights).to(lm_head.device).requires_grad_(False)
