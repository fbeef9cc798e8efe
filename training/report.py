"""`paceline train measure`: acceptance on held-out prompts that have chosen nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from common.model.medusa import checkpoint as medusa_checkpoint
from common.model.medusa.weights import HeadWeights
from training import acceptance, held_out
from training import eagle as eagle_training
from training.acceptance import Chain
from training.eagle_net import EagleNet
from training.encode import Encoder
from training.heads import Heads
from training.held_out import Domain
from training.models import load_draft, load_model

_LENGTHS = (3, 5, 7)
_TOKENS = f"tokens a pass for K={', '.join(map(str, _LENGTHS))}"


@dataclass(frozen=True)
class OfHeads:
    """What heads guess along the texts of a domain.

    Attributes:
        nodes: Of the tree that was chosen for them; None where none was.
        tokens: Mean tokens of a target pass with it.
        top_1: Part of the tokens that each head's likeliest one equals.
    """

    nodes: int | None
    tokens: float | None
    top_1: list[float]


@dataclass(frozen=True)
class OfEagle:
    """What an EAGLE head guesses along the texts of a domain.

    Attributes:
        tokens: Mean tokens of a target pass, by length of its chains.
        top_1: By depth, behind a draft of the text's own tokens: part of the tokens that its
            likeliest one equals.
    """

    tokens: dict[int, float]
    top_1: list[float]


@dataclass(frozen=True)
class Report:
    """What was measured, by domain.

    Attributes:
        drafter: Of a drafter; empty where none was given.
        heads: Of heads.
        eagle: Of an EAGLE head.
    """

    drafter: dict[str, Chain]
    heads: dict[str, OfHeads]
    eagle: dict[str, OfEagle]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    def lines(self) -> list[str]:
        """A table each."""
        return [
            *_draft_lines(self.drafter),
            *_head_lines(self.heads),
            *_eagle_lines(self.eagle),
        ]


def run(
    *,
    target: Path,
    draft: Path | None,
    heads: Path | None,
    eagle: Path | None,
    files: Sequence[Path],
    prompts: int,
    device: str,
) -> Report:
    """Measures a drafter, heads, or several.

    Args:
        target: Directory of the model.
        draft: Directory of a drafter.
        heads: Directory of Medusa heads.
        eagle: Directory of an EAGLE head.
        files: Files of documents, one a domain.
        prompts: Held-out prompts of each domain; half of them are used.
        device: Where to compute.
    """
    model = load_model(target).to(device)
    encoder = Encoder(target, model)
    drafter = None if draft is None else load_draft(draft, model).to(device)
    lm_head = model.get_output_embeddings().weight
    weights = None if heads is None else medusa_checkpoint.load(heads, lm_head=lm_head)
    net = None if eagle is None else eagle_training.load(eagle, model)
    domains = held_out.load(files, model, encoder, prompts)
    chains = {
        domain.name: acceptance.chain(drafter, domain.reporting, _LENGTHS)
        for domain in domains
        if drafter is not None
    }
    return Report(
        chains,
        {} if weights is None else _of_heads(model, weights, lm_head, domains),
        {} if net is None else _of_eagle(model, net, domains),
    )


def _of_heads(
    model: Any, weights: HeadWeights, lm_head: Tensor, domains: Sequence[Domain]
) -> dict[str, OfHeads]:
    module, tree = Heads.of(weights, lm_head), weights.tree
    measured = {}
    for domain in domains:
        found = acceptance.ranks(model, module, domain.reporting, lm_head)
        top_1 = acceptance.top_1(found).tolist()
        if tree is None:
            measured[domain.name] = OfHeads(None, None, top_1)
        else:
            tokens = acceptance.tree_tokens(found, tree)
            measured[domain.name] = OfHeads(len(tree), tokens, top_1)
    return measured


def _of_eagle(model: Any, net: EagleNet, domains: Sequence[Domain]) -> dict[str, OfEagle]:
    measured = {}
    for domain in domains:
        found = eagle_training.ranks(model, net, domain.reporting, max(_LENGTHS))
        tokens = {
            length: acceptance.tree_tokens(found, eagle_training.chain(length))
            for length in _LENGTHS
        }
        top_1 = acceptance.top_1(found).tolist()
        measured[domain.name] = OfEagle(tokens, top_1)
    return measured


def _draft_lines(drafter: dict[str, Chain]) -> list[str]:
    if not drafter:
        return []
    lines = [f"drafter: domain, share of tokens guessed, {_TOKENS}"]
    for domain, found in drafter.items():
        lines.append(f"{domain:<12} {found.agreement:.3f}  {_by_length(found.tokens)}")
    return lines


def _head_lines(heads: dict[str, OfHeads]) -> list[str]:
    lines: list[str] = []
    for domain, found in heads.items():
        if not lines:
            what = f"tokens a pass with the tree of {found.nodes} nodes, top-1 of each head"
            if found.tokens is None:
                what = "top-1 of each head; no tree yet: `paceline train tree` chooses one"
            lines.append(f"heads: domain, {what}")
        single = " ".join(f"{share:.3f}" for share in found.top_1)
        tokens = "" if found.tokens is None else f"{found.tokens:.2f}  "
        lines.append(f"{domain:<12} {tokens}{single}")
    return lines


def _eagle_lines(eagle: dict[str, OfEagle]) -> list[str]:
    if not eagle:
        return []
    lines = [f"eagle: domain, {_TOKENS}, top-1 by depth"]
    for domain, found in eagle.items():
        single = " ".join(f"{share:.3f}" for share in found.top_1)
        lines.append(f"{domain:<12} {_by_length(found.tokens)}  {single}")
    return lines


def _by_length(tokens: dict[int, float]) -> str:
    return "  ".join(f"{tokens[length]:.2f}" for length in _LENGTHS)
